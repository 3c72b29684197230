"""`phalanx train --bitwise`: the same bits on any number of ranks."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from phalanx.records.files import rank_file, read_events
from phalanx.records.schema import Certificate, FinishedEvent, SummaryEvent
from tests.conftest import Ranks, long
from tests.train.programs.bitwise import CASES, run


@pytest.fixture(autouse=True, scope="module")
def settings() -> Iterator[None]:
    """Undo what a bitwise run sets for its process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of one process."""
    folder = tmp_path_factory.mktemp("truth")
    for name in CASES:
        run(name, folder)
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
@pytest.mark.parametrize("num_ranks", [2, 3, long(4), long(8)])
def test_same_bits_on_any_number_of_ranks(
    num_ranks: int, ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path, truth: Path
) -> None:
    ranks.mpi(num_ranks, programs("bitwise.py"), str(tmp_path))
    for name in CASES:
        expected = certificate(truth / name)
        for rank in range(num_ranks):
            assert certificate(tmp_path / name, rank).sha256 == expected.sha256, (name, rank)
        assert metrics(tmp_path / name) == metrics(truth / name), name
        assert expected.micro_batches == 8
