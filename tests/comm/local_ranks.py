"""Ranks that are plain processes, for tests in which some of them are killed: an MPI launcher
would end the others too, before they could say what they saw."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class Pipes:
    """As much of a communicator as joining a node takes: rank 0 collects and hands back."""

    def __init__(self, rank: int, size: int, connections: list[Connection]) -> None:
        """connections: on rank 0 to each other rank, elsewhere to rank 0."""
        self._rank, self._size, self._connections = rank, size, connections

    def Get_rank(self) -> int:  # noqa: N802
        return self._rank

    def Get_size(self) -> int:  # noqa: N802
        return self._size

    def allgather(self, value: Any) -> list[Any]:
        if self._rank:
            self._connections[0].send(value)
            return self._connections[0].recv()
        values = [value, *(connection.recv() for connection in self._connections)]
        for connection in self._connections:
            connection.send(values)
        return values

    def bcast(self, value: Any) -> Any:
        return self.allgather(value)[0]

    def Barrier(self) -> None:  # noqa: N802
        self.allgather(None)


def run_ranks(size: int, program: Callable[[Pipes, Any], None]) -> list[str]:
    """Run `program(pipes, say)` on `size` processes; what each said last, "" for silence."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(size - 1)]
    answers = [context.Pipe(duplex=False) for _ in range(size)]
    processes = []
    for rank in range(size):
        ends = [pair[1] for pair in pairs] if rank == 0 else [pairs[rank - 1][0]]
        pipes = Pipes(rank, size, ends)
        processes.append(context.Process(target=program, args=(pipes, answers[rank][1])))
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        return [read.recv() if read.poll() else "" for read, _ in answers]
    finally:
        for process in processes:
            process.kill()
