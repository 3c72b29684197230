"""Each of three ranks: what ends a collective that cannot be finished, and what it says.

Word: `memory`, `network` or `device`. Every case has a group of its own, which it breaks.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
from host_memory import HostMemory
from pretended import group_on

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.library import BLOCKING_BYTES
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.errors import MismatchError, PeerFailedError, WaitTimeoutError
from phalanx.comm.group import Group
from phalanx.comm.world import World


def ten(dtype: str = "float32") -> Buffer:
    return Buffer.of(np.ones(10, dtype))


def much() -> Buffer:
    """More than what the library is asked for without blocking."""
    return Buffer.of(np.ones(BLOCKING_BYTES, np.uint32))


Kinds = type[Exception] | tuple[type[Exception], ...]


def message_of(kinds: Kinds, call: Callable[[], object]) -> str:
    try:
        call()
    except kinds as error:
        return str(error)
    raise AssertionError(f"{kinds} was expected")


def check_unusable(group: Group) -> None:
    began = time.monotonic()
    assert f"group {group.name} can no longer be used" in message_of(PeerFailedError, group.barrier)
    assert time.monotonic() - began < 1


def mismatch_of(call: Callable[[], object]) -> str:
    """In shared memory the first ranks to find it say so, and others may hear it from them."""
    return message_of((MismatchError, PeerFailedError), call)


def timeout_of(call: Callable[[], object]) -> str:
    """The same."""
    return message_of((WaitTimeoutError, PeerFailedError), call)


def other_collective(group: Group) -> None:
    group.barrier()
    if group.rank == 1:
        text = mismatch_of(lambda: group.broadcast(ten(), root=0))
    else:
        text = mismatch_of(lambda: group.all_reduce(ten()))
    if group.check:
        assert text == (
            f"collective number 2 of group {group.name}: "
            "ranks 0, 2 called all_reduce(float32, 10 elements, SUM), "
            "rank 1 called broadcast(float32, 10 elements, root 0)"
        ), text
    assert "called all_reduce(float32, 10 elements, SUM)" in text, text
    assert "rank 1 called broadcast(float32, 10 elements, root 0)" in text, text
    check_unusable(group)


def other_arguments(group: Group) -> None:
    op = ReduceOp.MAX if group.rank == 2 else ReduceOp.SUM
    text = mismatch_of(lambda: group.all_reduce(ten(), op))
    assert "rank 2 called all_reduce(float32, 10 elements, MAX)" in text, text


def other_dtype(group: Group) -> None:
    dtype = "float64" if group.rank == 0 else "float32"
    text = mismatch_of(lambda: group.all_reduce(ten(dtype)))
    assert "rank 0 called all_reduce(float64, 10 elements, SUM)" in text, text


def other_algorithm(group: Group) -> None:
    """Asked for on one rank alone, it would wait for messages that nobody sends."""
    algorithm = "ring" if group.rank == 1 else None
    text = mismatch_of(lambda: group.all_reduce(ten(), algorithm=algorithm))
    assert "ranks 0, 2 called all_reduce(float32, 10 elements, SUM)" in text, text
    assert "rank 1 called all_reduce by ring(float32, 10 elements, SUM)" in text, text


def other_counts(group: Group) -> None:
    outputs = [Buffer.of(np.zeros(3)) for _ in range(3)]
    parts = [Buffer.of(np.zeros(4 if (group.rank, peer) == (1, 2) else 3)) for peer in range(3)]
    message_of(MismatchError, lambda: group.all_to_all(outputs, parts))


def late_for(call: Callable[[Group], object], expected: str) -> Callable[[Group], None]:
    """Rank 1 does not come."""

    def case(group: Group) -> None:
        group.barrier()
        if group.rank == 1:
            return  # to the barrier of the world, where it does not hear this group
        text = timeout_of(lambda: call(group))
        waited = f"waited 0.5 s in {expected.format(group=group.name)}"
        heard = [f"rank {peer} failed: rank {peer} {waited}" for peer in (0, 2)]
        assert text in [f"rank {group.rank} {waited}", *heard], text
        check_unusable(group)

    return case


def late_sender(group: Group) -> None:
    if group.rank != 0:
        return
    request = group.receive(ten(), source=1, tag=5)
    text = message_of(WaitTimeoutError, lambda: request.wait(0.5))
    assert text.startswith("rank 0 waited 0.5 s in receive from rank 1, tag 5, of group")
    assert text.endswith("for rank 1"), text
    text = message_of(WaitTimeoutError, lambda: group.receive(ten(), source=None).wait(0.1))
    assert text.endswith("for any rank"), text


def elsewhere(group: Group) -> None:
    """Rank 1 waits too, but for a message."""
    if group.rank == 1:
        message_of(WaitTimeoutError, lambda: group.receive(ten(), source=2).wait(4))
        return
    text = message_of(WaitTimeoutError, lambda: group.barrier(timeout_s=0.5))
    assert "for rank 1, which is in receive from rank 2" in text, text


def failure(group: Group) -> None:
    group.barrier()
    if group.rank == 1:
        time.sleep(0.5)  # the others must have left the barrier
        group.fail("the disk is full")
        message_of(PeerFailedError, group.barrier)
        return
    began = time.monotonic()
    assert message_of(PeerFailedError, group.barrier) == "rank 1 failed: the disk is full"
    assert time.monotonic() - began < 3
    check_unusable(group)


def failure_elsewhere(group: Group) -> None:
    """Who waits in a subgroup, or for a message, learns it too."""
    some = group.subgroup([0, 1], name="some") if group.rank < 2 else None
    group.barrier()
    if group.rank == 1:
        time.sleep(0.5)
        group.fail("out of memory")
    elif group.rank == 0:
        assert some is not None
        request = some.receive(ten(), source=1)
        assert message_of(PeerFailedError, request.wait) == "rank 1 failed: out of memory"
    else:
        request = group.receive(ten(), source=0)
        assert message_of(PeerFailedError, request.wait) == "rank 1 failed: out of memory"
    if some:
        some.close()


def wrong_message(group: Group) -> None:
    """Longer and shorter than the buffer."""
    sends = []
    if group.rank == 0:
        sends = [group.send(ten(), dest=1, tag=tag) for tag in range(2)]
    if group.rank == 1:
        for tag, count in enumerate([9, 11]):
            buffer = Buffer.of(np.zeros(count, np.float32))
            text = message_of(MismatchError, group.receive(buffer, source=0, tag=tag).wait)
            assert f"expected {4 * count} bytes from rank 0" in text, text
    for send in sends:
        send.wait()


def on_device(case: Callable[[Group], None]) -> Callable[[Group], None]:
    def with_device(group: Group) -> None:
        with group.on_device(HostMemory()):
            case(group)

    return with_device


def other_memory(group: Group) -> None:
    """Rank 1 has its vector where the CPU has it."""
    if group.rank == 1:
        text = mismatch_of(lambda: group.all_reduce(ten()))
    else:
        with group.on_device(HostMemory()):
            text = mismatch_of(lambda: group.all_reduce(ten()))
    assert "ranks 0, 2 called all_reduce of device memory(float32, 10 elements, SUM)" in text, text
    assert "rank 1 called all_reduce(float32, 10 elements, SUM)" in text, text


MEMORY = {
    "other collective": other_collective,
    "other arguments": other_arguments,
    "other dtype": other_dtype,
    "late for all_reduce": late_for(
        lambda group: group.all_reduce(ten(), timeout_s=0.5),
        "all_reduce number 2 of group {group} for rank 1",
    ),
    "late sender": late_sender,
    "failure": failure,
    "failure elsewhere": failure_elsewhere,
    "wrong message": wrong_message,
}
NETWORK = {
    **MEMORY,
    "other counts": other_counts,
    "other algorithm": other_algorithm,
    "late for broadcast": late_for(
        lambda group: group.broadcast(ten(), root=1, timeout_s=0.5),
        "broadcast number 2 of group {group} for rank 1",
    ),
    "late for the library": late_for(
        lambda group: group.all_reduce(ten(), algorithm="library", timeout_s=0.5),
        "all_reduce number 2 of group {group} for rank 1",
    ),
    "late for much of the library": late_for(
        lambda group: group.all_reduce(much(), algorithm="library", timeout_s=0.5),
        "all_reduce number 2 of group {group} for rank 1",
    ),
    "elsewhere": elsewhere,
}
DEVICE = {
    "other memory": other_memory,
    **{
        name: on_device(NETWORK[name])
        for name in ("late for all_reduce", "late for broadcast", "elsewhere", "failure")
    },
}
CASES = {"memory": MEMORY, "network": NETWORK, "device": DEVICE}


def main() -> None:
    world = World.create(timeout_s=30)
    nodes = (0, 1, 0) if sys.argv[1] == "network" else (0, 0, 0)
    for name, case in CASES[sys.argv[1]].items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        check = sys.argv[1] != "memory" and name.startswith("other")
        group = group_on(nodes, name=name, timeout_s=10, check=check)
        case(group)
        began = time.monotonic()
        group.close()
        assert time.monotonic() - began < 3, f"closing took {time.monotonic() - began:.1f} s"
        world.barrier()
    print(f"rank {world.rank} is done", flush=True)
    world.close()


main()
