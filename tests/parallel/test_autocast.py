import pytest
import torch
from torch import nn

from phalanx.errors import UserError
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.models.build import build_model
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import Batch, StepOptions
from phalanx.train.config import TrainConfig
from tests.parallel.stepping import make_step

RULE = OptimizerConfig(name="sgd", learning_rate=0.1)


def stepped(dtype: torch.dtype | None) -> tuple[float, nn.Module]:
    strategy = Replicas(RunGroup(), StepOptions(autocast=dtype))
    strategy.prepare(build_model("mlp", seed=0), RULE)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(64, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (64,), generator=generator)
    losses = [make_step(strategy, Batch(images, labels, 64, 64, n)).loss_sum for n in range(20)]
    return losses[-1] / 64, strategy.model


def test_bfloat16_learns_alike_and_leaves_parameters_in_float32() -> None:
    loss, model = stepped(None)
    cast_loss, cast_model = stepped(torch.bfloat16)
    assert cast_loss != loss, "the arithmetic is another"
    assert cast_loss == pytest.approx(loss, rel=0.02)
    for parameter, cast in zip(model.parameters(), cast_model.parameters(), strict=True):
        assert cast.dtype == torch.float32
        assert cast.grad is not None
        assert cast.grad.dtype == torch.float32
        assert (parameter - cast).norm() < 0.05 * parameter.norm()


def test_float64_and_pipelines_are_refused() -> None:
    with pytest.raises(UserError, match="--dtype is float64: leave one of them out"):
        TrainConfig.from_options(autocast="bf16", dtype="float64")
    with pytest.raises(UserError, match="--autocast bf16 means nothing for --model mlp --strategy"):
        TrainConfig.from_options(autocast="bf16", strategy="pipeline", ranks=2)
