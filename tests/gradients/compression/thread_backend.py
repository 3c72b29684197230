"""Ranks that are threads of this process, for the arithmetic of compressors."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from phalanx.comm.traffic import all_gather_traffic, all_to_all_traffic
from phalanx.gradients.compression.compressor import ReduceBackend

Result = TypeVar("Result")


class Board:
    """Where ranks leave what the others read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.left: list[Sequence[Tensor]] = [()] * size
        self.barrier = threading.Barrier(size, timeout=20)


class ThreadBackend(ReduceBackend):
    """One rank; `sent_bytes` counts as `comm` does."""

    def __init__(self, rank: int, board: Board) -> None:
        self.rank, self.size, self._board = rank, board.size, board
        self.sent_bytes = 0

    def all_reduce(self, values: Tensor) -> None:
        everybody = self._all([values.clone()])
        values.zero_()
        for (theirs,) in everybody:
            values += theirs

    def all_gather(self, outputs: Sequence[Tensor], part: Tensor) -> None:
        for output, (theirs,) in zip(outputs, self._all([part.clone()]), strict=True):
            output.copy_(theirs)
        self.sent_bytes += all_gather_traffic([o.nbytes for o in outputs], self.rank).sent_bytes

    def all_to_all(self, outputs: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
        everybody = self._all([part.clone() for part in parts])
        for output, theirs in zip(outputs, everybody, strict=True):
            output.copy_(theirs[self.rank])
        sent, expected = [p.nbytes for p in parts], [o.nbytes for o in outputs]
        self.sent_bytes += all_to_all_traffic(sent, expected, self.rank).sent_bytes

    def _all(self, mine: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        board = self._board
        board.left[self.rank] = mine
        board.barrier.wait()
        everybody = list(board.left)
        board.barrier.wait()
        return everybody


def run(size: int, program: Callable[[ThreadBackend], Result]) -> list[Result]:
    """What `program` returns on each of `size` ranks."""
    board = Board(size)
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def main(rank: int) -> None:
        torch.set_num_threads(1)
        try:
            results[rank] = program(ThreadBackend(rank, board))
        except BaseException as error:  # noqa: BLE001
            errors.append(error)
            board.barrier.abort()

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(size)]
