"""All-reduce with encoded messages: half types and int8.

Every rank owns a share of the vector. It sends each owner what it has of that share, coded; the
owner adds up what came, in float32 and in the order of the ranks, codes the sum, and sends it to
all. So values are rounded twice, on the way to the owner and on the way back, however many ranks
there are, and all ranks, the owner too, end with what the coded sum says: the same bits.

What a coding loses is kept and added next time on both ways: Tang et al. 2019, "DoubleSqueeze",
arXiv:1905.05957.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Size, Tensor

from phalanx.parallel.compression.coding import Coding
from phalanx.parallel.compression.compressor import Compressor, Ranks, count_of
from phalanx.parallel.compression.pieces import Cut, shares_of
from phalanx.parallel.compression.scratch import Scratch, is_finite


class CodedSum:
    """All-reduce of any number of buckets, one after the other; they share the working memory.

    A large vector goes in pieces: while one travels the next is coded, and what came before is
    added up or decoded.
    """

    def __init__(self, coding: Coding) -> None:
        self.coding = coding
        self._scratch = Scratch()
        self._cuts: dict[tuple[int, int], Cut] = {}

    def reduce(self, values: Tensor, ranks: Ranks, kept: Kept) -> None:
        """Sum `values`, (n,) float32, over the ranks, in place. Collective."""
        cut = self._cut(len(values), ranks.size)
        work = _Work(self.coding, cut, ranks.rank, values, kept, self._scratch)
        with ranks.rounds(sum(cut.num_bytes)) as rounds:
            numbers = range(cut.num_pieces)
            steps = [range(n, n + 1) for n in numbers] if rounds.overlap else [numbers]
            there, back = [], []
            for step in steps:  # what others wait for first
                work.code(step, work.others)
                there.append(rounds.begin_all_to_all(*work.parts(step)))
                work.code(step, work.own)
            for step, finish in zip(steps, there, strict=True):
                finish()
                work.add_up(step)
                back.append(rounds.begin_all_gather(*work.sums(step)))
                work.decode(step, work.own)
            for step, finish in zip(steps, back, strict=True):
                finish()
                work.decode(step, work.others)

    def sent_bytes(self, count: int, rank: int, num_ranks: int) -> int:
        """Return the bytes that `rank` sends: to the owners, and its own reduced shard to all."""
        sizes = self._cut(count, num_ranks).num_bytes
        return sum(sizes) - sizes[rank] + (num_ranks - 1) * sizes[rank]

    def _cut(self, count: int, num_ranks: int) -> Cut:
        cut = self._cuts.get((count, num_ranks))
        if cut is None:
            cut = self._cuts[count, num_ranks] = Cut(count, num_ranks, self.coding)
        return cut


class _Work:
    """One all-reduce: its steps on some chunks of every shard, and the encoded buffers."""

    def __init__(
        self, coding: Coding, cut: Cut, rank: int, values: Tensor, kept: Kept, scratch: Scratch
    ) -> None:
        self._coding, self._cut, self._rank = coding, cut, rank
        self._values, self._kept = values, kept
        self.own = [rank]
        self.others = [owner for owner in range(len(cut.shares)) if owner != rank]
        sizes = cut.num_bytes
        self._sent = scratch.parts("sent", sizes)
        self._results = scratch.parts("results", sizes)
        self._arrived = scratch.parts("arrived", [sizes[rank]] * len(sizes))
        self._arrived[rank] = self._sent[rank]

    def code(self, step: range, owners: Sequence[int]) -> None:
        """Encode this rank's values for these owners."""
        for owner in owners:
            for piece, part in self._pieces(owner, step, self._sent[owner]):
                self._coding.encode(self._values[piece], part, self._kept.own[piece])

    def parts(self, step: range) -> tuple[list[Tensor], list[Tensor]]:
        """Return the receive buffers of the local shard, and the send buffers for every owner."""
        arriving = [self._part(self._rank, step, memory) for memory in self._arrived]
        return arriving, [self._part(o, step, memory) for o, memory in enumerate(self._sent)]

    def add_up(self, step: range) -> None:
        """Sum the local shard, and encode the sum."""
        own, values = self._rank, self._values
        for number, memory in enumerate(self._arrived):
            for piece, part in self._pieces(own, step, memory):
                self._coding.decode(part, values[piece], adds=number > 0)
        first = self._cut.shares[own].start
        for piece, part in self._pieces(own, step, self._results[own]):
            lost = self._kept.of_sum[piece.start - first : piece.stop - first]
            self._coding.encode(values[piece], part, lost)

    def sums(self, step: range) -> tuple[list[Tensor], Tensor]:
        """Return the buffers of all reduced shards, and the local one among them."""
        sums = [self._part(owner, step, memory) for owner, memory in enumerate(self._results)]
        return sums, sums[self._rank]

    def decode(self, step: range, owners: Sequence[int]) -> None:
        """Decode the reduced shards of these owners."""
        for owner in owners:
            for piece, part in self._pieces(owner, step, self._results[owner]):
                self._coding.decode(part, self._values[piece], adds=False)

    def _pieces(self, owner: int, step: range, memory: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the chunks of a shard: their places in the vector, and encoded in `memory`."""
        for number in step:
            piece = self._cut.pieces[owner][number]
            part = self._part(owner, range(number, number + 1), memory)
            yield slice(piece.start, piece.stop), part

    def _part(self, owner: int, step: range, memory: Tensor) -> Tensor:
        if self._cut.num_pieces == 1:
            return memory
        starts = self._cut.starts[owner]
        return memory[starts[step.start] : starts[step.stop]]


class Kept(NamedTuple):
    """Residuals of a bucket that are added next time: of this rank's values, and of the sum of its
    shard. Empty where the codec has no error feedback."""

    own: Tensor
    of_sum: Tensor

    @classmethod
    def nothing(cls, count: int, num_ranks: int, coding: Coding) -> Kept:
        """Make zero residuals of a bucket of `count` values."""
        if not coding.keeps:
            return cls(torch.zeros(0), torch.zeros(0))
        largest = max(len(share) for share in shares_of(count, num_ranks, coding.unit))
        return cls(torch.zeros(count), torch.zeros(largest))

    def forget(self) -> None:
        self.own.zero_()
        self.of_sum.zero_()


class Coded(Compressor):
    """fp16, bf16 and int8."""

    def __init__(self, name: str, coding: Coding) -> None:
        self.name, self.keeps = name, coding.keeps
        self._sum = CodedSum(coding)
        self._scratch = Scratch()
        self._known: set[int] = set()
        self._kept: dict[int, Kept] = {}

    def prepare(self, number: int, shapes: Sequence[Size]) -> None:  # noqa: ARG002
        if number in self._known:
            self._known.clear()
            self._kept.clear()
        self._known.add(number)

    def reduce(self, number: int, values: Tensor, ranks: Ranks) -> None:
        if ranks.size == 1:
            return
        kept = self._kept.get(number)
        if kept is None:
            kept = Kept.nothing(len(values), ranks.size, self._sum.coding)
            self._kept[number] = kept
        with self._scratch.as_float32(values) as working:
            self._sum.reduce(working, ranks, kept)
            if self.keeps and not is_finite(working):
                kept.forget()

    def sent_bytes(self, shapes: Sequence[Size], rank: int, num_ranks: int) -> int:
        return self._sum.sent_bytes(count_of(shapes), rank, num_ranks) if num_ranks > 1 else 0

    def kept(self) -> dict[str, Tensor]:
        return {
            f"{number}:{what}": tensor
            for number, kept in self._kept.items()
            for what, tensor in kept._asdict().items()
        }

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        numbers = {int(name.split(":")[0]) for name in kept}
        self._kept = {n: Kept(kept[f"{n}:own"], kept[f"{n}:of_sum"]) for n in numbers}
