"""Parameters on every mesh of 2, 3, 4 and 8 ranks are those of one process, and the bytes that
every step moves those of the formulas. Stages of a pipeline: tests/parallel/pipeline."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks, long

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]


def check(ranks: Ranks, program: Path, count: int, *words: str, timeout_s: float = 280) -> None:
    output = ranks.mpi(count, program, *words, timeout_s=timeout_s)
    for rank in range(count):
        assert f"rank {rank} of {count} is done" in output, output


@pytest.mark.parametrize("count", [long(2), 3, 4])
def test_every_mesh_trains_what_one_process_trains(
    ranks: Ranks, programs: Callable[[str], Path], count: int
) -> None:
    check(ranks, programs("on_mesh.py"), count, "mpi")


def test_pieces_stage_two_and_split_sequences(
    ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    words = ("sgd", "stage2", "sequence", "accumulate")
    check(ranks, programs("on_mesh.py"), 2, "mpi", *words)


def test_on_gloo(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    check(ranks, programs("on_mesh.py"), 2, "gloo")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("words", [(), ("sgd", "stage2", "sequence")])
def test_every_mesh_of_eight_ranks(
    ranks: Ranks, programs: Callable[[str], Path], words: tuple[str, ...]
) -> None:
    check(ranks, programs("on_mesh.py"), 8, "mpi", *words, timeout_s=880)


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_optimizer_state_dealt_out(
    ranks: Ranks, programs: Callable[[str], Path], backend: str
) -> None:
    check(ranks, programs("zero.py"), 3, backend)
