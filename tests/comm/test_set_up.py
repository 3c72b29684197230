"""Set-up: objects along a tree, with no rank that sends everything to all."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from phalanx.comm.set_up import SetupCommunicator

Letters = defaultdict[tuple[int, int], SimpleQueue[bytes]]


class Place:
    """Communicator of one rank, which has only its place."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def Get_rank(self) -> int:  # noqa: N802
        return self._rank

    def Get_size(self) -> int:  # noqa: N802
        return self._size


class Counted(SetupCommunicator):
    """A rank whose messages go by queues, and are counted."""

    def __init__(self, rank: int, size: int, letters: Letters) -> None:
        super().__init__(Place(rank, size), None)  # type: ignore[arg-type]
        self._letters, self.sent_bytes = letters, 0

    def _send(self, text: bytes, peers: Iterable[int]) -> None:
        for peer in peers:
            self._letters[self.Get_rank(), peer].put(text)
            self.sent_bytes += len(text)

    def _receive(self, peer: int) -> bytes:
        return self._letters[peer, self.Get_rank()].get(timeout=60)


def run(size: int, call: Callable[[SetupCommunicator, int], Any]) -> tuple[list[Any], list[int]]:
    """Return what each of `size` ranks gets, a thread each, and the bytes that it sends."""
    letters: Letters = defaultdict(SimpleQueue)
    ranks = [Counted(rank, size, letters) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        found = list(threads.map(call, ranks, range(size)))
    return found, [rank.sent_bytes for rank in ranks]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 20, 64])
def test_every_rank_gets_the_objects_of_all_in_their_order(size: int) -> None:
    found, _ = run(size, lambda communicator, rank: communicator.allgather(f"of {rank}"))
    assert found == [[f"of {rank}" for rank in range(size)]] * size


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_every_rank_gets_the_object_of_the_first(size: int) -> None:
    found, _ = run(size, lambda communicator, rank: communicator.bcast(f"of {rank}"))
    assert found == ["of 0"] * size


@pytest.mark.parametrize("size", [64, 1024])
def test_no_rank_sends_the_texts_of_all_to_all(size: int) -> None:
    """Rank 0 sent the settings of all ranks to each of them: 0.7 GB at 1,024 ranks."""

    def text(rank: int) -> str:
        host = f"node-{rank // 16}"
        return json.dumps({"host": host, "affinity": list(range(128)), "version": "1.2.3"})

    _, sent = run(size, lambda communicator, rank: communicator.allgather(text(rank)))
    all_texts = sum(len(text(rank)) for rank in range(size))
    assert max(sent) < all_texts
    assert sum(sent) < all_texts * size / 20
