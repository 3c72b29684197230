"""The same routine for `Group` on 1, 2, 3 and 4 ranks of whatever MPI this environment has."""

import subprocess
import sys

import pytest

from tests.conftest import Programs, Ranks, done, long

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("count", [1, long(2), 3, long(4)])
@pytest.mark.parametrize(
    "words",
    [
        ("network", "reductions", "movement", "algorithms", "closing"),
        ("memory", "reductions", "movement"),
        ("device", "device"),
    ],
    ids=lambda words: words[0],
)
def test_every_call(ranks: Ranks, programs: Programs, count: int, words: tuple[str, ...]) -> None:
    assert done(ranks.mpi(count, programs("group.py"), *words), count)


@pytest.mark.parametrize("way", ["memory", "network", "device"])
def test_what_ends_a_collective(ranks: Ranks, programs: Programs, way: str) -> None:
    output = ranks.mpi(3, programs("group_faults.py"), way)
    assert all(f"rank {rank} is done" in output for rank in range(3))


@pytest.mark.long
@pytest.mark.timeout(320)
def test_what_is_too_long_for_one_message(ranks: Ranks, programs: Programs) -> None:
    """Thousands of messages, which MPICH takes two minutes for where ranks share cores."""
    words = ("pieces", "movement", "algorithms", "device")
    assert done(ranks.mpi(3, programs("group.py"), *words, timeout_s=300), 3)


def test_a_world_after_mpi_has_ended() -> None:
    program = (
        "from mpi4py import MPI; from phalanx.comm.world import World; "
        "World.create().close(); World.create().close(); MPI.Finalize(); World.create()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "RuntimeError: MPI has been finalised in this process" in done.stderr
