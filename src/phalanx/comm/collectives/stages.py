"""Chunks of a long vector that go through the stages of a collective one behind the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DType
from phalanx.comm.transport import Transport

DEPTH = 3  # chunks between two stages: so many are on the network at the same time


def stages(num_chunks: int, num_stages: int) -> Iterator[tuple[int, int]]:
    """Yield (stage, chunk): each chunk goes through all stages, the same order on every rank; a
    stage of a chunk comes DEPTH chunks behind the one before, which has been under way so long."""
    for step in range(num_chunks + DEPTH * (num_stages - 1)):
        for stage in range(num_stages):
            chunk = step - DEPTH * stage
            if 0 <= chunk < num_chunks:
                yield stage, chunk


def run_in_stages(chunks: Sequence[Iterator[None]], num_stages: int) -> None:
    """Run all chunks, each of which yields between its `num_stages` stages."""
    for _, chunk in stages(len(chunks), num_stages):
        next(chunks[chunk], None)


def places_for(
    transport: Transport, num_chunks: int, num_places: int, count: int, dtype: DType
) -> list[list[Buffer]]:
    """Return memory that chunks take in turn, `num_places` buffers of (count,) for each chunk
    between two stages."""
    num_under_way = min(num_chunks, DEPTH + 1)
    return [
        [transport.scratch(count, dtype) for _ in range(num_places)] for _ in range(num_under_way)
    ]
