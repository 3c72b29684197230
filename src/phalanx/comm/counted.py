"""Shared-memory collectives that count their traffic."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.comm import traffic as formulas
from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.shm import ShmGroup
from phalanx.comm.traffic import TrafficCounter


class CountedShmGroup:
    """A `ShmGroup` that counts the traffic of its calls; `Group` documents them."""

    def __init__(self, shm: ShmGroup, traffic: TrafficCounter) -> None:
        self._shm, self._traffic = shm, traffic
        self.rank, self.size = shm.rank, shm.size

    def barrier(self, *, timeout_s: float | None = None) -> None:
        self._shm.barrier(timeout_s=timeout_s)

    def all_reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        self._shm.all_reduce(buffer, op, divisor=divisor, timeout_s=timeout_s)
        self._traffic.add(
            formulas.all_reduce_traffic(buffer.count, buffer.dtype.itemsize, self.rank, self.size)
        )

    def reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        root: int,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        self._shm.reduce(buffer, op, root=root, divisor=divisor, timeout_s=timeout_s)
        self._traffic.add(
            formulas.reduce_traffic(buffer.count, buffer.dtype.itemsize, self.rank, self.size, root)
        )

    def broadcast(self, buffer: Buffer, *, root: int, timeout_s: float | None = None) -> None:
        self._shm.broadcast(buffer, root=root, timeout_s=timeout_s)
        self._traffic.add(formulas.broadcast_traffic(buffer.num_bytes, self.rank, self.size, root))

    def all_gather(
        self, outputs: Sequence[Buffer], part: Buffer, *, timeout_s: float | None = None
    ) -> None:
        self._shm.all_gather(outputs, part, timeout_s=timeout_s)
        self._traffic.add(formulas.all_gather_traffic(_bytes_of(outputs), self.rank))

    def reduce_scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer],
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        self._shm.reduce_scatter(output, parts, op, divisor=divisor, timeout_s=timeout_s)
        self._traffic.add(formulas.reduce_scatter_traffic(_bytes_of(parts), self.rank))

    def all_to_all(
        self,
        outputs: Sequence[Buffer],
        parts: Sequence[Buffer],
        *,
        timeout_s: float | None = None,
    ) -> None:
        self._shm.all_to_all(outputs, parts, timeout_s=timeout_s)
        self._traffic.add(
            formulas.all_to_all_traffic(_bytes_of(parts), _bytes_of(outputs), self.rank)
        )

    def gather(
        self,
        outputs: Sequence[Buffer] | None,
        part: Buffer,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        self._shm.gather(outputs, part, root=root, timeout_s=timeout_s)
        parts = [part.num_bytes] * self.size if outputs is None else _bytes_of(outputs)
        self._traffic.add(formulas.gather_traffic(parts, self.rank, root))

    def scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer] | None,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        self._shm.scatter(output, parts, root=root, timeout_s=timeout_s)
        given = [output.num_bytes] * self.size if parts is None else _bytes_of(parts)
        self._traffic.add(formulas.scatter_traffic(given, self.rank, root))


def count_traffic(
    shm: ShmGroup | None, traffic: TrafficCounter | None
) -> ShmGroup | CountedShmGroup | None:
    """Return `shm`, wrapped to count into `traffic` if that is given."""
    return shm if shm is None or traffic is None else CountedShmGroup(shm, traffic)


def _bytes_of(buffers: Sequence[Buffer]) -> list[int]:
    return [buffer.num_bytes for buffer in buffers]
