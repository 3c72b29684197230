"""`phalanx train --bitwise --strategy pipeline`: the bits of one process, whatever the stages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from phalanx.errors import UserError
from phalanx.parallel.pipeline.bitwise import BitwiseStage, check_held
from phalanx.parallel.pipeline.chain import layers_of
from phalanx.parallel.pipeline.exact_messages import TensorLayout, exact_copy
from phalanx.parallel.pipeline.messages import Handover
from phalanx.report.bitwise import find_parting, read_bitwise_run
from phalanx.train.config import TrainConfig
from phalanx.train.run import complete, title
from tests.conftest import Ranks
from tests.train.programs.bitwise_pipeline import FEW, LINKED, SCHEDULES, cases_on, run
from tests.train.test_bitwise import certificate, metrics

pytestmark = pytest.mark.usefixtures("restored_settings")


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Records of a case in one process."""
    folder = tmp_path_factory.mktemp("truth")

    def records(name: str) -> Path:
        if not (folder / name).exists():
            saving = {"checkpoint_dir": folder / "checkpoints", "checkpoint_steps": 2}
            run(name, folder, **(saving if name == "drawing" else {}))
        return folder / name

    return records


def check(folder: Path, truth: Path, num_ranks: int) -> None:
    """Certificates of all ranks, losses and accuracies, and digests of each step are the same."""
    expected = certificate(truth)
    for rank in range(num_ranks):
        found = certificate(folder, rank)
        assert (found.sha256, found.strategy) == (expected.sha256, "pipeline"), (folder, rank)
    assert metrics(folder) == metrics(truth), folder
    own, one = read_bitwise_run(folder), read_bitwise_run(truth)
    assert own.steps.keys() == one.steps.keys()
    assert find_parting(own, one) is None


@pytest.mark.mpi
def test_stages_have_the_bits_of_one_process(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path, truth: Callable[[str], Path]
) -> None:
    ranks.mpi(3, programs("bitwise_pipeline.py"), str(tmp_path))
    for name in FEW:
        check(tmp_path / name, truth(name), 3)


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_schedules_checkpoints_and_messages_change_no_bit(
    num_ranks: int,
    ranks: Ranks,
    programs: Callable[[str], Path],
    tmp_path: Path,
    truth: Callable[[str], Path],
) -> None:
    whole = truth("drawing")
    checkpoint = whole.parent / "checkpoints" / "epoch-0001-samples-00000064"
    ranks.mpi(num_ranks, programs("bitwise_pipeline.py"), str(tmp_path), str(checkpoint))
    cases = {".": cases_on(num_ranks), "linked": LINKED, **SCHEDULES}
    for place, names in cases.items():
        for name in names:
            check(tmp_path / place / name, truth(name), num_ranks)
    for place in ("resumed", "saved", "zero"):
        assert certificate(tmp_path / place / "drawing").sha256 == certificate(whole).sha256


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "gloo"}, "--backend gloo means nothing .*: it is for runs without --bitwise"),
        ({"survive": True}, "a rank has the only copy of its stages"),
        ({"zero_stage": 1}, "--zero-stage 1 means nothing"),
        ({"overlap": "on"}, "--overlap on means nothing"),
    ],
)
def test_options_of_others_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        TrainConfig.from_options(bitwise=True, strategy="pipeline", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 2, "model": "cnn"}, "cnn cannot be split into stages"),
        ({"ranks": 4}, "4 stages, but mlp has 3 layers"),
        ({"ranks": 3, "micro_batches": 2}, "1f1b needs a micro-batch for each of its 3 ranks"),
        ({"ranks": 2, "micro_batches": 9, "batch_size": 8}, "--batch-size 8 it must be 1 to 8"),
    ],
)
def test_what_does_not_fit(options: dict[str, Any], words: str) -> None:
    config = TrainConfig.from_options(
        bitwise=True, strategy="pipeline", dataset="digits", **options
    )
    with pytest.raises(UserError, match=words):
        complete(config, None)


def test_fewer_micro_batches_than_ranks_and_the_record() -> None:
    config = TrainConfig.from_options(
        bitwise=True, strategy="pipeline", ranks=3, micro_batches=2, dataset="digits",
        pipeline_schedule="gpipe",
    )  # fmt: skip
    config, _ = complete(config, None)
    assert TrainConfig.from_record(config.as_record()) == config
    assert "pipeline (bitwise, 2 micro-batches), 3 ranks" in title(config)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).view(2, 3, 4),
        torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
        torch.arange(24.0).view(2, 3, 4)[:, -1],
        torch.arange(24.0)[3:].view(3, 7),
        torch.ones(()).expand(3, 4),
        torch.arange(24.0).view(2, 3, 4)[:, -1:, ::2].expand(2, 5, 2),
        torch.empty(0, 3),
        torch.tensor(True),
        torch.arange(6, dtype=torch.bfloat16),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)}{tensor.stride()}",
)
def test_copies_keep_values_and_layout(tensor: torch.Tensor) -> None:
    copy = exact_copy(tensor)
    assert torch.equal(copy, tensor)
    assert TensorLayout.of(copy) == TensorLayout.of(tensor)
    assert TensorLayout.from_numbers(TensorLayout.of(tensor).as_numbers()) == TensorLayout.of(
        tensor
    )
    assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return gradient + torch.rand_like(gradient)


class Odd(nn.Module):
    """A layer of which a stage cannot be made, by what it does."""

    def __init__(self, does: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.does = nn.Linear(2, 2), does

    def forward(self, x: torch.Tensor) -> Any:
        return self.does(self.inner(x))


def stage_of(layers: nn.Module, micro_batches: int) -> BitwiseStage:
    return BitwiseStage(layers, micro_batches, lambda *_: None, None)


def test_layers_that_stages_cannot_have_are_refused() -> None:
    given = Handover(torch.ones(3, 2))
    with pytest.raises(UserError, match=r"returned a tuple: .* take and return one tensor"):
        stage_of(Odd(lambda x: (x, x)), 1).forward(0, given)
    noisy = stage_of(Odd(Noisy.apply), 1)
    noisy.begin(0, {0: 3})
    output = noisy.forward(0, given).tensor
    with pytest.raises(UserError, match="draws random numbers in its backward pass"):
        noisy.backward(0, torch.ones_like(output), is_last=True)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model.register_buffer("scale", torch.ones(()))
    with pytest.raises(UserError, match="scale is outside the layers"):
        check_held(list(model.state_dict()), layers_of(model))


def test_a_micro_batch_has_buffers_of_its_own() -> None:
    """Their mean is that over the micro-batches, each from the values of the step before."""
    norm = nn.BatchNorm1d(2, momentum=0.5)
    stage, inputs = stage_of(norm, 2), torch.arange(12.0).view(2, 3, 2)
    stage.begin(0, {0: 3, 1: 3})
    for number in (0, 1):
        output = stage.forward(number, Handover(inputs[number])).tensor
    for number in (1, 0):  # the backward passes may come in any order
        stage.backward(number, torch.ones_like(output), is_last=False)
    stage.end()
    assert torch.equal(norm.running_mean, 0.5 * inputs.mean((0, 1)))
    assert norm.num_batches_tracked == 1


def test_what_no_message_takes_is_refused() -> None:
    with pytest.raises(UserError, match="return one plain dense tensor of real numbers"):
        TensorLayout.of(torch.eye(2).to_sparse())
