"""Messages over sockets, by MPI's rules: two or three ranks as threads of this process."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from phalanx.comm.errors import PeerFailedError
from phalanx.comm.sockets.communicator import SocketCommunicator
from phalanx.comm.sockets.meeting import Address, Listener
from phalanx.comm.sockets.mesh import SocketMesh
from phalanx.comm.sockets.requests import ERR_TRUNCATE, SocketError, Status
from phalanx.comm.wait import WaitTimeoutError

Pair = tuple[SocketCommunicator, SocketCommunicator, list[SocketMesh]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    meshes = [SocketMesh(0, {1: left}), SocketMesh(1, {0: right})]
    first, second = (SocketCommunicator(mesh, (0, 1)) for mesh in meshes)
    yield first, second, meshes
    for mesh in meshes:
        mesh.close()


def wait(*requests: Any) -> Status:
    """Until all are done; the status of the last."""
    status, until_s = Status(), time.monotonic() + 20
    pending = list(requests)
    while pending := [request for request in pending if not request.Test(status)]:
        assert time.monotonic() < until_s
        time.sleep(1e-4)  # the other ranks may be threads of this process
    return status


def on_ranks(count: int, program: Callable[[SocketCommunicator], Any]) -> list[Any]:
    listeners = [Listener(count) for _ in range(count)]
    addresses = [listener.address for listener in listeners]

    def run(rank: int) -> Any:
        mesh = listeners[rank].connect(rank, addresses, 20)
        try:
            return program(SocketCommunicator(mesh, range(count)))
        finally:
            mesh.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_messages_of_a_tag_come_in_order_and_others_do_not_mix(pair: Pair) -> None:
    first, second, _ = pair
    other_first, other_second = first.Dup(), second.Dup()
    sent = [first.Isend(bytes([n]), 1, tag=n % 2) for n in range(4)]
    sent.append(other_first.Isend(b"x", 1, tag=0))
    memory = [bytearray(1) for _ in range(5)]
    received = [
        second.Irecv(memory[0], 0, tag=1),
        second.Irecv(memory[1], 0, tag=1),
        second.Irecv(memory[2]),
        other_second.Irecv(memory[4], 0, tag=0),
        second.Irecv(memory[3], 0, tag=0),
    ]
    status = wait(*sent, *received)
    assert b"".join(memory) == b"\1\3\0\2x"
    assert (status.Get_source(), status.Get_count()) == (0, 1)


@pytest.mark.parametrize("posted_first", [True, False])
@pytest.mark.parametrize("num_bytes", [0, 1, 100, 3_000_000])
def test_sizes(num_bytes: int, posted_first: bool, pair: Pair) -> None:
    first, second, meshes = pair
    data = bytes(range(256)) * (num_bytes // 256) + bytes(num_bytes % 256)
    memory = bytearray(num_bytes)
    receive = second.Irecv(memory, 0, 7) if posted_first else None
    sent = first.Isend(data, 1, 7)
    for _ in range(100):
        for mesh in meshes:
            mesh.progress()
    if receive is None:
        receive = second.Irecv(memory, 0, 7)
    wait(sent, receive)
    assert memory == data


def test_both_send_much_before_either_receives(pair: Pair) -> None:
    first, second, _ = pair
    data = bytes(4_000_000)
    memory = [bytearray(len(data)), bytearray(len(data))]
    sent = [first.Isend(data, 1), second.Isend(data, 0)]
    wait(*sent, first.Irecv(memory[0], 1), second.Irecv(memory[1], 0))


def test_a_message_that_is_too_long(pair: Pair) -> None:
    first, second, _ = pair
    receive = second.Irecv(bytearray(3), 0, 0)
    wait(first.Isend(b"four", 1, 0))
    with pytest.raises(SocketError) as caught:
        wait(receive)
    assert caught.value.Get_error_class() == ERR_TRUNCATE
    wait(first.Isend(b"abc", 1, 0), second.Irecv(bytearray(3), 0, 0))  # it goes on after that


def test_a_cancelled_receive_leaves_its_message_to_the_next(pair: Pair) -> None:
    first, second, _ = pair
    given_up, memory = second.Irecv(bytearray(1), 0, 0), bytearray(1)
    given_up.Cancel()
    status = wait(given_up)
    assert status.Is_cancelled()
    status = wait(first.Isend(b"a", 1, 0), second.Irecv(memory, 0, 0))
    assert memory == b"a"
    assert not status.Is_cancelled()


def test_a_rank_that_has_gone(pair: Pair) -> None:
    first, second, meshes = pair
    wait(first.Isend(b"last", 1, 0))
    posted = second.Irecv(bytearray(1), 0, 1)
    meshes[0].close()
    with pytest.raises(PeerFailedError, match="rank 0 failed: its process is gone"):
        wait(posted)
    memory = bytearray(4)
    wait(second.Irecv(memory, 0, 0))  # what it sent before is there
    assert memory == b"last"
    assert second.Isend(bytes(9), 0, 0).Test()  # to nobody
    with pytest.raises(PeerFailedError):
        wait(second.Irecv(memory, 0, 0))
    assert second.Improbe() is None  # others may come
    with pytest.raises(PeerFailedError, match="rank 0 failed: its process is gone"):
        second.Improbe(0, 5)


def test_a_rank_sends_to_itself(pair: Pair) -> None:
    first, _, _ = pair
    memory = bytearray(3)
    first.Isend(b"own", 0, 5)
    wait(first.Irecv(memory, 0, 5))
    assert memory == b"own"


def test_probes_see_whole_messages_only(pair: Pair) -> None:
    first, second, meshes = pair
    assert second.Improbe() is None
    status = Status()
    sent = first.Isend(bytes(2_000_000), 1, 3)
    seen: list[Any] = []
    while not seen:
        message = second.Improbe(status=status)
        seen += [message] if message else []
        meshes[0].progress()
    assert sent.Test()
    assert (status.Get_source(), status.Get_count()) == (0, 2_000_000)
    memory = bytearray(2_000_000)
    seen[0].Recv(memory)
    assert second.Improbe() is None


def test_communicators_of_some_ranks() -> None:
    """Made twice of the same members they are two, whose messages do not mix."""

    def program(world: SocketCommunicator) -> list[int]:
        rank, memory = world.Get_rank(), bytearray(1)
        duplicate, made = world.Idup()
        sent = duplicate.Isend(bytes([rank]), (rank + 1) % 3)
        wait(made, sent, duplicate.Irecv(memory, (rank - 1) % 3))
        found = [memory[0]]
        if rank < 2:
            both = [world.Create_group(world.Get_group().Incl([1, 0]), 3) for _ in range(2)]
            place = both[0].Get_rank()
            sends = [one.Isend(bytes([10 * n + rank]), 1 - place) for n, one in enumerate(both)]
            for one in reversed(both):
                wait(one.Irecv(memory, 1 - place))
                found += [place, memory[0]]
            wait(*sends)
            both[0].Free()
        return found

    assert on_ranks(3, program) == [[2, 1, 11, 1, 1], [0, 0, 10, 0, 0], [1]]


def test_threads_of_a_rank_share_its_sockets() -> None:
    """Each on a communicator of its own, in other orders on each rank."""

    def program(world: SocketCommunicator) -> list[Any]:
        own = [world.Dup() for _ in range(4)]
        order = range(4) if world.Get_rank() else range(3, -1, -1)
        found: dict[int, Any] = {}
        threads = [
            threading.Thread(target=lambda n=n: found.update({n: _talk(own[n], n)})) for n in order
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[n] for n in range(4)]

    def _talk(communicator: SocketCommunicator, number: int) -> int:
        peer, total = 1 - communicator.Get_rank(), 0
        for turn in range(50):
            memory = bytearray(1)
            wait(
                communicator.Isend(bytes([number + turn % 7]), peer, 0),
                communicator.Irecv(memory, peer, 0),
            )
            total += memory[0] - turn % 7
        return total

    assert on_ranks(2, program) == [[0, 50, 100, 150]] * 2


def stranger_to(address: Address, said: bytes) -> socket.socket:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.connect(f"\0{address.name}")
    stranger.sendall(said)
    return stranger


def test_strangers_are_not_let_in_and_hold_nobody() -> None:
    """The names stand in /proc/net/unix. One silent connection of another user's held rank 0 for
    the whole timeout, and garbage ended it with a UnicodeDecodeError."""
    listener, other = Listener(2), Listener(2)
    words = (b"", b"abc", bytes(24), b"\x01" + bytes(7) + b"\xff" * 16, b"x" * 10_000)
    strangers = [stranger_to(listener.address, said) for said in words]
    with ThreadPoolExecutor(2) as pool:
        addresses = [listener.address, other.address]
        mine = pool.submit(listener.connect, 0, addresses, 20)
        pool.submit(other.connect, 1, addresses, 20).result().close()
        mesh = mine.result()
    assert mesh.size == 2
    mesh.close()
    for stranger in strangers:
        with suppress(ConnectionResetError):  # some of what it said was not read
            assert stranger.recv(1) == b""
        stranger.close()


def test_a_crowd_of_strangers_delays_a_rank_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they filled the queue, `connect` waited longer than its timeout."""
    monkeypatch.setattr(socket, "SOMAXCONN", 0)
    listener, other = Listener(1), Listener(1)
    strangers = [stranger_to(listener.address, b"") for _ in range(2)]
    addresses = [listener.address, other.address]
    with pytest.raises(WaitTimeoutError, match="rank 0 refuses rank 1"):
        Listener(1).connect(1, addresses, 0.1)
    with ThreadPoolExecutor(1) as pool:
        his = pool.submit(other.connect, 1, addresses, 20)
        mesh = listener.connect(0, addresses, 20)
        his.result().close()
    mesh.close()
    for stranger in strangers:
        stranger.close()
    with pytest.raises(WaitTimeoutError, match="ranks not connected on this node: 1"):
        Listener(2).connect(0, addresses, 0.1)
