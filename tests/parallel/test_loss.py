"""Padding counts for nothing, and micro-batches of uneven sizes make the same step."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.loss import sum_of_nothing
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import Batch, StepOptions
from phalanx.run.program_loss import ProgramLoss
from tests.parallel.stepping import make_step

SGD = OptimizerConfig(name="sgd", learning_rate=0.1)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def test_padding_is_never_seen_and_has_gradients_of_zero() -> None:
    def never(_outputs: Tensor, _targets: Tensor) -> Tensor:
        raise AssertionError

    layer, loss = nn.Linear(2, 3), ProgramLoss()
    loss.begin(never, None)
    outputs = layer(torch.rand(1, 2))
    total = loss.sum_over((outputs, {"more": outputs}), torch.zeros(1), 0)
    total.backward()
    assert total.item() == 0
    assert not layer.weight.grad.any()  # type: ignore[union-attr]
    assert sum_of_nothing(torch.ones(2)).item() == 0


def test_micro_batches_of_uneven_sizes_make_the_same_step() -> None:
    """Seven samples in three micro-batches, then a padding sample; outputs are no one tensor."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            y = self.layer(x)
            return {"mean": y, "spread": y.square()}

    def mean(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        return squares(outputs["mean"], targets) + outputs["spread"].mean()

    inputs, targets = torch.rand(7, 3), torch.rand(7, 2)
    found, loss = [], ProgramLoss()
    loss.begin(mean, None)
    for accumulate in (1, 3):
        torch.manual_seed(0)
        strategy = Replicas(RunGroup(), StepOptions(accumulate=accumulate))
        strategy.prepare(Two(), SGD)
        result = make_step(strategy, Batch(inputs, targets, 7, 7, 0), loss)
        assert result.logits is None
        padding = Batch(inputs[:1], torch.zeros(1, 2), 0, 7, 1)
        assert make_step(strategy, padding, loss).loss_sum == 0
        found.append((result.loss_sum, strategy.model.layer.weight.detach().clone()))
    assert found[0][0] == pytest.approx(found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])
