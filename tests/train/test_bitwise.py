"""`phalanx train --bitwise`: the same bits on any number of ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import UserError
from phalanx.records.events import Certificate, FinishedEvent, SummaryEvent, certificate_text
from phalanx.records.files import rank_file, read_events
from phalanx.train.config import TrainConfig
from phalanx.train.run import complete, title
from tests.conftest import Ranks, long
from tests.train.programs.bitwise import CASES, FURTHER, LINKED, run

pytestmark = pytest.mark.usefixtures("restored_settings")


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of one process."""
    folder = tmp_path_factory.mktemp("truth")
    for name in CASES:
        saving = {"checkpoint_dir": folder / "checkpoints", "checkpoint_steps": 2}
        run(name, folder, **(saving if name == "mlp" else {}))
    return folder


def certificate(folder: Path, rank: int = 0) -> Certificate:
    *_, last = read_events(rank_file(folder, rank))
    assert isinstance(last, FinishedEvent)
    assert last.certificate is not None
    return last.certificate


def metrics(folder: Path) -> list[str]:
    """Return losses and accuracies of the epochs, also those that are no numbers."""
    events = [e for e in read_events(rank_file(folder, 0)) if isinstance(e, SummaryEvent)]
    return [
        f"{e.train_loss!r} {e.train_accuracy} {e.validation_loss!r} {e.validation_accuracy}"
        for e in events
    ]


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 3, long(4), long(5), long(8)])
def test_same_bits_on_any_number_of_ranks(
    num_ranks: int, ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path, truth: Path
) -> None:
    checkpoint = truth / "checkpoints" / "epoch-0001-samples-00000064"
    ranks.mpi(num_ranks, programs("bitwise.py"), str(tmp_path), str(checkpoint))
    for name in CASES:
        expected = certificate(truth / name)
        for rank in range(num_ranks):
            assert certificate(tmp_path / name, rank).sha256 == expected.sha256, (name, rank)
        assert metrics(tmp_path / name) == metrics(truth / name), name
        assert expected.micro_batches == 8
        assert f"after {expected.steps} steps of 8 micro-batches" in certificate_text(expected)
        begun = next(read_events(rank_file(tmp_path / name, 0)))
        costs = getattr(begun, "expected", None)
        assert costs is not None
        assert costs.sent_bytes is None, "it is by who computes what, and was said to be 0"
    whole = certificate(truth / "mlp")
    for place in ("resumed", "saved", "resumed/shared"):
        found = certificate(tmp_path / place / "mlp")
        assert (found.sha256, found.steps) == (whole.sha256, whole.steps), place
    folders = [
        place / strategy / name
        for place, cases in ((tmp_path, FURTHER), (tmp_path / "linked", LINKED))
        for strategy, names in cases.items()
        for name in names
    ]
    for folder in folders:
        strategy, name = folder.parts[-2:]
        expected = certificate(truth / name)
        for rank in range(num_ranks):
            found = certificate(folder, rank)
            assert (found.sha256, found.strategy) == (expected.sha256, strategy), (folder, rank)
        assert metrics(folder) == metrics(truth / name), folder


def test_resuming_with_another_cut_is_refused(truth: Path) -> None:
    with pytest.raises(UserError, match="--micro-batches 8 there, 4 here"):
        run("mlp", truth / "no", resume=truth / "checkpoints", micro_batches=4, epochs=3)
    assert not (truth / "no").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "tensor", "ranks": 2}, "it splits the sums within layers among the ranks"),
        ({"mesh": "dp=2,tp=2"}, "--strategy mesh exclude each other: its axes split sums"),
        ({"strategy": "zero"}, "--zero-stage 3 exclude each other: .* use --zero-stage 1 or 2"),
        (
            {"strategy": "zero", "zero_stage": 1, "backend": "gloo"},
            "--backend gloo means nothing .*: it is for runs without --bitwise",
        ),
        ({"strategy": "shared", "zero_stage": 1}, "--zero-stage 1 means nothing"),
        ({"strategy": "mpi", "compress": "fp16"}, "--compress fp16 means nothing .* without --bit"),
        ({"strategy": "mpi", "bucket_mb": 2.0}, "which has a fixed order of sums"),
        ({"strategy": "shared", "overlap": "on"}, "--overlap on means .* for --strategy mpi[^-]*$"),
        ({"threads": 2}, "--bitwise uses one thread per rank, not 2"),
        ({"accumulate": 2}, "--micro-batches: use that in place of --accumulate 2"),
        ({"per_rank_batch_size": 8}, "makes the global batch depend on the number of ranks"),
        ({"data": Path("pack"), "damaged": "skip"}, "leave --damaged skip out"),
    ],
)
def test_what_makes_bits_depend_on_the_ranks_is_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        TrainConfig.from_options(bitwise=True, **options)


@pytest.mark.parametrize(
    ("ranks", "number", "batch", "words"),
    [
        (
            3,
            2,
            8,
            "--micro-batches 2 is out of range: with 3 ranks and --batch-size 8 it must be 3",
        ),
        (1, 9, 8, "with 1 rank and --batch-size 8 it must be 1 to 8"),
        (9, None, 16, "--micro-batches 8 is out of range: with 9 ranks"),
    ],
)
def test_a_cut_that_does_not_fit(ranks: int, number: int | None, batch: int, words: str) -> None:
    config = TrainConfig.from_options(
        bitwise=True, strategy="mpi", ranks=ranks, micro_batches=number, batch_size=batch
    )
    with pytest.raises(UserError, match=words):
        complete(config, None)


def test_the_cut_survives_the_record() -> None:
    config = TrainConfig.from_options(bitwise=True, strategy="mpi", ranks=2, dataset="digits")
    config, _ = complete(config, None)
    assert config.threads == 1
    assert config.bitwise_micro_batches() == 8
    again = TrainConfig.from_record(config.as_record())
    assert again == config
    assert again.as_record()["micro_batches"] == 8
    assert "mpi (bitwise, 8 micro-batches), 2 ranks" in title(config)
