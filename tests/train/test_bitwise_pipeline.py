"""`phalanx train --bitwise --strategy pipeline`: the bits of one process, whatever the stages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.errors import UserError
from phalanx.parallel.pipeline.exact_messages import TensorLayout, exact_copy
from phalanx.report.bitwise import find_parting, read_bitwise_run
from phalanx.train.config import TrainConfig
from phalanx.train.run import complete, title
from tests.conftest import Ranks, long
from tests.train.programs.bitwise_pipeline import CASES, LINKED, SCHEDULES, cases_on, run
from tests.train.test_bitwise import certificate, metrics

pytestmark = pytest.mark.usefixtures("restored_settings")


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of one process."""
    folder = tmp_path_factory.mktemp("truth")
    for name in CASES:
        saving = {"checkpoint_dir": folder / "checkpoints", "checkpoint_steps": 2}
        run(name, folder, **(saving if name == "drawing" else {}))
    return folder


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [3, long(2), long(4)])
def test_stages_have_the_bits_of_one_process(
    num_ranks: int, ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path, truth: Path
) -> None:
    checkpoint = truth / "checkpoints" / "epoch-0001-samples-00000064"
    ranks.mpi(num_ranks, programs("bitwise_pipeline.py"), str(tmp_path), str(checkpoint))
    folders = [tmp_path / name for name in cases_on(num_ranks)]
    folders += [
        tmp_path / schedule / name for schedule, names in SCHEDULES.items() for name in names
    ]
    folders += [tmp_path / "linked" / name for name in LINKED]
    for folder in folders:
        expected = certificate(truth / folder.name)
        for rank in range(num_ranks):
            found = certificate(folder, rank)
            assert (found.sha256, found.strategy) == (expected.sha256, "pipeline"), (folder, rank)
        assert metrics(folder) == metrics(truth / folder.name), folder
        own, one = read_bitwise_run(folder), read_bitwise_run(truth / folder.name)
        assert own.steps.keys() == one.steps.keys()
        assert find_parting(own, one) is None
    whole = certificate(truth / "drawing")
    for place in ("resumed", "saved", "zero"):
        assert certificate(tmp_path / place / "drawing").sha256 == whole.sha256


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "gloo"}, "--backend gloo means nothing .*: it is for runs without --bitwise"),
        ({"survive": True}, "a rank alone has its stages"),
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
        ({"ranks": 2, "model": "cnn"}, "cnn cannot be cut into stages"),
        ({"ranks": 4}, "4 stages, but mlp has 3 layers"),
        ({"ranks": 3, "micro_batches": 2}, "1f1b needs a micro-batch for each of its 3 ranks"),
        ({"ranks": 2, "micro_batches": 9, "batch_size": 8}, "of 8 it is from 1 to 8"),
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


def test_what_no_message_takes_is_refused() -> None:
    with pytest.raises(UserError, match="return one plain dense tensor of real numbers"):
        TensorLayout.of(torch.eye(2).to_sparse())
