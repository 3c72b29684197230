"""All-reduce with encoded messages: half types and int8.

Every rank owns a shard of the vector. It sends each owner its encoded values of that shard; the
owner sums them, in float32 and in the order of the ranks, encodes the sum, and sends it to all. So
values are rounded twice, on the way to the owner and on the way back, however many ranks there
are, and all ranks, the owner too, end with the decoded sum: the same bits.

The residual of both encodings is added next time: Tang et al. 2019, "DoubleSqueeze",
arXiv:1905.05957.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Size, Tensor

from phalanx.comm.layout import share_of, starts_of
from phalanx.gradients.compression.codec import Codec
from phalanx.gradients.compression.compressor import (
    Compressor,
    ReduceBackend,
    Scratch,
    count_of,
    is_finite,
)

CHUNK_BYTES = 256 * 1024
"""Minimum size of an encoded chunk: it takes 2 ms over 1 Gbit/s, 0.2 ms over 10 Gbit/s, several
times what a message costs by itself."""

MAX_CHUNKS = 8
"""Only the encoding of the first chunk and of the last is exposed: an eighth each."""

_ALIGNMENT = 64
"""Chunks begin at multiples of so many values, where every codec begins a word."""


class ShardChunks:
    """Shards of a vector, one owned by each rank, and their separately encoded chunks.

    The number of chunks depends on count, ranks and codec alone, so that the bits of a sum do not
    depend on the transport.
    """

    def __init__(self, count: int, num_ranks: int, codec: Codec) -> None:
        self.shards = shards_of(count, num_ranks, codec.unit)
        largest = max(len(shard) for shard in self.shards)
        self.num_chunks = min(MAX_CHUNKS, max(1, codec.num_bytes(largest) // CHUNK_BYTES))
        unit = max(_ALIGNMENT, codec.unit)
        self.chunks = [
            [
                range(shard.start + chunk.start, shard.start + chunk.stop)
                for chunk in shards_of(len(shard), self.num_chunks, unit)
            ]
            for shard in self.shards
        ]
        """[rank][number]."""
        self.starts = [
            starts_of([codec.num_bytes(len(chunk)) for chunk in chunks]) for chunks in self.chunks
        ]
        """[rank][number]: where a chunk begins in the encoded shard; its bytes at the end."""
        self.num_bytes = [starts[-1] for starts in self.starts]
        """[rank]: of the encoded shard."""


def shards_of(count: int, size: int, unit: int) -> list[range]:
    """Divide [0, count) at multiples of `unit` into `size` shards."""
    units = -(-count // unit)
    shards = (share_of(rank, size, units) for rank in range(size))
    return [range(min(s.start * unit, count), min(s.stop * unit, count)) for s in shards]


class CodecAllReduce:
    """All-reduce of any number of buckets, one after the other; they share the working memory.

    A large vector is sent in chunks: while one is in flight the next is encoded, and those that
    arrived are summed or decoded.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._scratch = Scratch()
        self._chunks: dict[tuple[int, int], ShardChunks] = {}

    def reduce(self, values: Tensor, backend: ReduceBackend, residual: ErrorFeedback) -> None:
        """Sum `values`, (n,) float32, over the ranks, in place. Collective."""
        chunks = self._chunks_of(len(values), backend.size)
        work = _Reduction(self.codec, chunks, backend.rank, values, residual, self._scratch)
        with backend.rounds(sum(chunks.num_bytes)) as rounds:
            numbers = range(chunks.num_chunks)
            steps = [range(n, n + 1) for n in numbers] if rounds.overlap else [numbers]
            scatters, gathers = [], []
            for step in steps:  # peers wait for this first
                work.encode(step, work.peers)
                scatters.append(rounds.begin_all_to_all(*work.scatter_buffers(step)))
                work.encode(step, work.local)
            for step, finish in zip(steps, scatters, strict=True):
                finish()
                work.reduce_local_shard(step)
                gathers.append(rounds.begin_all_gather(*work.gather_buffers(step)))
                work.decode(step, work.local)
            for step, finish in zip(steps, gathers, strict=True):
                finish()
                work.decode(step, work.peers)

    def sent_bytes(self, count: int, rank: int, num_ranks: int) -> int:
        """Return the bytes that `rank` sends: to the owners, and its own reduced shard to all."""
        sizes = self._chunks_of(count, num_ranks).num_bytes
        return sum(sizes) - sizes[rank] + (num_ranks - 1) * sizes[rank]

    def _chunks_of(self, count: int, num_ranks: int) -> ShardChunks:
        chunks = self._chunks.get((count, num_ranks))
        if chunks is None:
            chunks = self._chunks[count, num_ranks] = ShardChunks(count, num_ranks, self.codec)
        return chunks


class _Reduction:
    """One all-reduce: its work on some chunks of every shard, and the encoded buffers."""

    def __init__(
        self,
        codec: Codec,
        chunks: ShardChunks,
        rank: int,
        values: Tensor,
        residual: ErrorFeedback,
        scratch: Scratch,
    ) -> None:
        self._codec, self._chunks, self._rank = codec, chunks, rank
        self._values, self._residual = values, residual
        self.local = [rank]
        self.peers = [owner for owner in range(len(chunks.shards)) if owner != rank]
        sizes = chunks.num_bytes
        self._sent = scratch.parts("sent", sizes)
        self._results = scratch.parts("results", sizes)
        self._arrived = scratch.parts("arrived", [sizes[rank]] * len(sizes))
        self._arrived[rank] = self._sent[rank]

    def encode(self, step: range, owners: Sequence[int]) -> None:
        """Encode this rank's values for these owners."""
        for owner in owners:
            for chunk, encoded in self._encoded_chunks(owner, step, self._sent[owner]):
                self._codec.encode(self._values[chunk], encoded, self._residual.own[chunk])

    def scatter_buffers(self, step: range) -> tuple[list[Tensor], list[Tensor]]:
        """Return the receive buffers of the local shard, and the send buffers for every owner."""
        arriving = [self._encoded(self._rank, step, memory) for memory in self._arrived]
        return arriving, [self._encoded(o, step, memory) for o, memory in enumerate(self._sent)]

    def reduce_local_shard(self, step: range) -> None:
        """Sum the local shard, and encode the sum."""
        rank, values = self._rank, self._values
        for source, memory in enumerate(self._arrived):
            for chunk, encoded in self._encoded_chunks(rank, step, memory):
                self._codec.decode(encoded, values[chunk], accumulate=source > 0)
        first = self._chunks.shards[rank].start
        for chunk, encoded in self._encoded_chunks(rank, step, self._results[rank]):
            residual = self._residual.of_sum[chunk.start - first : chunk.stop - first]
            self._codec.encode(values[chunk], encoded, residual)

    def gather_buffers(self, step: range) -> tuple[list[Tensor], Tensor]:
        """Return the buffers of all reduced shards, and the local one among them."""
        sums = [self._encoded(owner, step, memory) for owner, memory in enumerate(self._results)]
        return sums, sums[self._rank]

    def decode(self, step: range, owners: Sequence[int]) -> None:
        """Decode the reduced shards of these owners."""
        for owner in owners:
            for chunk, encoded in self._encoded_chunks(owner, step, self._results[owner]):
                self._codec.decode(encoded, self._values[chunk], accumulate=False)

    def _encoded_chunks(
        self, owner: int, step: range, memory: Tensor
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield the chunks of a shard: their places in the vector, and encoded in `memory`."""
        for number in step:
            chunk = self._chunks.chunks[owner][number]
            encoded = self._encoded(owner, range(number, number + 1), memory)
            yield slice(chunk.start, chunk.stop), encoded

    def _encoded(self, owner: int, step: range, memory: Tensor) -> Tensor:
        if self._chunks.num_chunks == 1:
            return memory
        starts = self._chunks.starts[owner]
        return memory[starts[step.start] : starts[step.stop]]


class ErrorFeedback(NamedTuple):
    """Residuals of a bucket that are added next time: of this rank's values, and of the sum of its
    shard. Empty where the codec has no error feedback. The fields' names are keys in checkpoints.
    """

    own: Tensor
    of_sum: Tensor

    @classmethod
    def zeros(cls, count: int, num_ranks: int, codec: Codec) -> ErrorFeedback:
        """Make zero residuals of a bucket of `count` values."""
        if not codec.has_residual:
            return cls(torch.zeros(0), torch.zeros(0))
        largest = max(len(shard) for shard in shards_of(count, num_ranks, codec.unit))
        return cls(torch.zeros(count), torch.zeros(largest))

    def reset(self) -> None:
        self.own.zero_()
        self.of_sum.zero_()


class CodecCompressor(Compressor):
    """Compressor fp16, bf16 or int8: a codec, with error feedback where it has a residual."""

    takes_slices = True

    def __init__(self, name: str, codec: Codec) -> None:
        super().__init__()
        self.name, self.has_state = name, codec.has_residual
        self._all_reduce = CodecAllReduce(codec)
        self._scratch = Scratch()
        self._residuals: dict[int, ErrorFeedback] = {}

    def drop_state(self) -> None:
        self._residuals.clear()

    def reduce(self, number: int, values: Tensor, backend: ReduceBackend) -> None:
        if backend.size == 1:
            return
        residual = self._residuals.get(number)
        if residual is None:
            residual = ErrorFeedback.zeros(len(values), backend.size, self._all_reduce.codec)
            self._residuals[number] = residual
        with self._scratch.as_float32(values) as working:
            self._all_reduce.reduce(working, backend, residual)
            if self.has_state and not is_finite(working):
                residual.reset()

    def sent_bytes(self, shapes: Sequence[Size], rank: int, num_ranks: int) -> int:
        count = count_of(shapes)
        return self._all_reduce.sent_bytes(count, rank, num_ranks) if num_ranks > 1 else 0

    def state_dict(self) -> dict[str, Tensor]:
        return {
            f"{number}:{field}": tensor
            for number, residual in self._residuals.items()
            for field, tensor in residual._asdict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        numbers = {int(name.split(":")[0]) for name in state}
        self._residuals = {
            n: ErrorFeedback(state[f"{n}:own"], state[f"{n}:of_sum"]) for n in numbers
        }
