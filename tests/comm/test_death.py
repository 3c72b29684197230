"""What the ranks of a node see when one of them is killed, stuck or gives up."""

import ctypes
import mmap
import os
import select
import signal
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest

from phalanx.comm.buffer import Buffer
from phalanx.comm.errors import PeerFailedError, WaitTimeoutError
from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.kernels import compiled
from phalanx.comm.rank_labels import RankLabels
from phalanx.comm.shm import ShmGroup
from phalanx.comm.wait import WaitPolicy
from phalanx.jobs.leftovers import SHARED_MEMORY, mapped_files
from tests.comm.local_ranks import Pipes, run_ranks

pytestmark = pytest.mark.skipif(compiled() is None, reason="no C kernels were built")

KILLED = 1
# Longer than there is room for, and with a character that is no text, as names of files may have.
REASON = "ValueError: no such luck with \udcff.png: xx" + 400 * "é"


def join(pipes: Pipes, timeout_s: float) -> ShmGroup:
    policy = WaitPolicy.for_node(3, 2)
    node = ShmGroup.join(pipes, policy=policy, name="test", timeout_s=timeout_s)
    assert node is not None
    node.all_reduce(Buffer.of(np.ones(100_000, np.float32)))
    return node


def is_killed(pipes: Pipes, said: Connection) -> None:
    node = join(pipes, timeout_s=30)
    if pipes.Get_rank() == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        node.all_reduce(Buffer.of(np.ones(100_000, np.float32)))
    except PeerFailedError as error:
        took = "less" if time.monotonic() - began < 5 else "more"
        files = [file.name for file in mapped_files(os.getpid()) if file.parent == SHARED_MEMORY]
        said.send(f"{error}; after {took} than 5 s; files mapped: {files}")


def is_killed_while_it_is_read(pipes: Pipes, said: Connection) -> None:
    """In the midst of long sums, for which the ranks read each other's memory."""
    node = join(pipes, timeout_s=30)
    vector = Buffer.of(np.ones(3_000_000, np.float32))
    node.all_reduce(vector)
    if pipes.Get_rank() == KILLED:
        signal.setitimer(signal.ITIMER_REAL, 0.05 + time.time() % 0.05)  # whose signal kills
    began = time.monotonic()
    try:
        while True:
            node.all_reduce(vector)
    except PeerFailedError as error:
        said.send(f"{error}; after {'less' if time.monotonic() - began < 5 else 'more'} than 5 s")
        node.fail(str(error))  # for the other one, who may wait for this rank


def has_memory_that_nobody_reads(pipes: Pipes, said: Connection) -> None:
    """In the middle of a long vector with readable ends, in a part that is not the rank's own."""
    node = join(pipes, timeout_s=30)
    memory = mmap.mmap(-1, 4 * 2**20)
    vector = np.frombuffer(memory, np.float32)
    if pipes.Get_rank():
        page = ctypes.c_void_p(vector.ctypes.data + 2**20)
        assert ctypes.CDLL(None).mprotect(page, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    try:
        node.all_reduce(Buffer.of(vector))
    except (MemoryError, PeerFailedError) as error:
        said.send(f"{type(error).__name__}: {error}")
        node.fail(str(error))


def kills_ranks_with_memory(pipes: Pipes, said: Connection) -> None:
    """The system takes a while to free it: longer than a notice."""
    node = join(pipes, timeout_s=30)
    memory = mmap.mmap(-1, 300 * 2**20) if pipes.Get_rank() else b""
    for page in range(0, len(memory), mmap.PAGESIZE):
        memory[page] = 1
    pids = pipes.allgather(os.getpid())
    if pipes.Get_rank():
        time.sleep(60)
    is_early = []
    for rank in (1, 2):
        process = os.pidfd_open(pids[rank])
        os.kill(pids[rank], signal.SIGKILL)
        until = time.monotonic() + 30
        while not node.is_dead(rank) and time.monotonic() < until:
            time.sleep(0)
        is_early.append(node.is_dead(rank) and not select.select([process], [], [], 0)[0])
    said.send(f"before it was gone: {any(is_early)}")


class Silence:
    """A communicator on which nobody says anything."""

    def Get_rank(self) -> int:  # noqa: N802
        return 0

    def Improbe(self, **_: object) -> None:  # noqa: N802
        return None


def is_killed_while_awaited(pipes: Pipes, said: Connection) -> None:
    """A wait for something else than the kernels, such as a message."""
    node = join(pipes, timeout_s=30)
    if pipes.Get_rank() == KILLED:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    policy = WaitPolicy.for_node(3, 2)
    watch = FailureDetector(
        Silence(), group="g", labels=RankLabels(members=(0, 1, 2)), policy=policy, timeout_s=30
    )
    watch.is_dead, watch.activity = node.is_dead, "a test"
    assert not node.is_dead(2 - pipes.Get_rank())
    try:
        watch.until(lambda: False, peers=lambda: [2 - pipes.Get_rank(), KILLED])
    except PeerFailedError as error:
        said.send(str(error))
    time.sleep(1)  # for the other one to see that this rank lives


def is_interrupted_as_the_peer_arrives(pipes: Pipes, said: Connection) -> None:
    """A signal's exception comes out of the wait in which the peer arrives: it once became a
    `SystemError`, as the kernel returned a result beside it."""
    node = join(pipes, timeout_s=30)
    if pipes.Get_rank() == 1:
        pipes.bcast(None)
        node.barrier()
        return

    def interrupt() -> None:
        pipes.bcast(None)
        time.sleep(0.3)
        raise KeyboardInterrupt

    kernels = compiled()
    assert kernels is not None
    kernels.set_progress_hook(interrupt)
    try:
        node.barrier()
    except (KeyboardInterrupt, SystemError) as error:
        said.send(type(error).__name__)
    kernels.set_progress_hook(None)


def is_stuck(pipes: Pipes, said: Connection) -> None:
    node = join(pipes, timeout_s=0.5)
    if pipes.Get_rank() == KILLED:
        time.sleep(3)
        return
    try:
        node.barrier()
    except WaitTimeoutError as error:
        said.send(f"timeout: {error}")
    except PeerFailedError as error:  # of the other rank's timeout
        said.send(f"timeout: {str(error).split(': ')[1]}")


def gives_up(pipes: Pipes, said: Connection) -> None:
    node = join(pipes, timeout_s=30)
    if pipes.Get_rank() == KILLED:
        node.fail(REASON)
        return
    try:
        node.barrier()
    except PeerFailedError as error:
        said.send(str(error))


@pytest.mark.alone
def test_an_interrupted_wait_raises_what_interrupted_it() -> None:
    assert run_ranks(2, is_interrupted_as_the_peer_arrives)[0] == "KeyboardInterrupt"


def test_a_killed_rank_is_named_and_leaves_no_memory() -> None:
    """Its memory has no name, so none is left: `/dev/shm` has segments of other jobs meanwhile."""
    said = run_ranks(3, is_killed)
    text = "rank 1 failed: its process is gone; after less than 5 s; files mapped: []"
    assert said[0] == said[2] == text


@pytest.mark.parametrize("attempt", range(5))
def test_a_rank_killed_while_it_is_read_is_named(attempt: int) -> None:
    said = run_ranks(3, is_killed_while_it_is_read)
    for text in (said[0], said[2]):
        assert text.endswith("rank 1 failed: its process is gone; after less than 5 s")


def test_memory_that_cannot_be_read_ends_the_call_on_all_ranks() -> None:
    said = run_ranks(2, has_memory_that_nobody_reads)
    assert said[0] == "MemoryError: the memory of rank 1 could not be read"
    assert said[1] == f"PeerFailedError: rank 0 failed: {said[0].split(': ')[1]}"


def test_a_killed_rank_is_named_by_those_who_wait_for_a_message() -> None:
    said = run_ranks(3, is_killed_while_awaited)
    text = "rank 1 failed: its process is gone; rank 0 waited for it in a test of group g"
    assert said[0] == said[2] == text


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the dead are seen when they are gone"
)
def test_a_killed_rank_is_noticed_before_its_memory_is_freed() -> None:
    assert run_ranks(3, kills_ranks_with_memory)[0] == "before it was gone: True"


def test_a_stuck_rank_is_named() -> None:
    said = run_ranks(3, is_stuck)
    assert said[0] == said[2] == "timeout: rank 1"


def test_a_rank_that_gives_up_tells_the_others_why() -> None:
    said = run_ranks(3, gives_up)
    assert said[0] == said[2]
    beginning = "rank 1 failed: ValueError: no such luck with \\udcff.png: xx"
    assert said[0].startswith(beginning)
    assert 190 < said[0].count("é") == len(said[0]) - len(beginning), "cut between characters"
