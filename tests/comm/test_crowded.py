"""Ranks beside processes that compute: late wake-ups, but no late answers and no wrong sums."""

import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np
import pytest

from phalanx.comm.buffer import Buffer
from phalanx.comm.errors import WaitTimeoutError
from phalanx.comm.kernels import compiled
from phalanx.comm.shm import ShmGroup
from phalanx.comm.wait import WaitPolicy, wait_until
from phalanx.jobs.cores import usable_cores
from tests.comm.local_ranks import Pipes, run_ranks

pytestmark = pytest.mark.alone

TIMEOUT_S = 0.5
NOTICED_WITHIN_S = 8.0
BUSY_A_CORE = 4
YIELDS = WaitPolicy.for_node(ranks=2, cores=2)  # as where every rank has a core
SIZES = (1, 600, 40_000, 700_001)


@pytest.fixture
def busy() -> Iterator[None]:
    """Processes that keep every core busy, and end by themselves should nobody end them."""
    program = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
    words = [sys.executable, "-I", "-S", "-c", program]
    processes = [subprocess.Popen(words) for _ in range(BUSY_A_CORE * usable_cores())]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def sums_and_waits(pipes: Pipes, said: Connection) -> None:
    node = ShmGroup.join(pipes, policy=YIELDS, name="test", timeout_s=30)
    assert node is not None
    for size in (*SIZES, *SIZES):
        values = np.arange(size, dtype=np.float32) % 1000 + pipes.Get_rank()
        node.all_reduce(Buffer.of(values))
        assert np.array_equal(values, 2 * (np.arange(size, dtype=np.float32) % 1000) + 1)
    if pipes.Get_rank() == 0:
        began = time.monotonic()
        with pytest.raises(WaitTimeoutError, match="rank 1"):
            node.barrier(timeout_s=TIMEOUT_S)
        waited_s = time.monotonic() - began
        said.send("in time" if TIMEOUT_S <= waited_s < NOTICED_WITHIN_S else f"{waited_s:.1f} s")
    pipes.Barrier()  # rank 1 does not come to the other one


@pytest.mark.skipif(compiled() is None, reason="no C kernels were built")
@pytest.mark.usefixtures("busy")
def test_sums_are_right_and_a_timeout_is_noticed() -> None:
    assert run_ranks(2, sums_and_waits)[0] == "in time"


@pytest.mark.usefixtures("busy")
def test_a_wait_in_python_notices_its_timeout() -> None:
    began = time.monotonic()
    with pytest.raises(WaitTimeoutError):
        wait_until(lambda: False, YIELDS, timeout_s=TIMEOUT_S, on_timeout=lambda: "")
    assert time.monotonic() - began < NOTICED_WITHIN_S
