"""A sum whose messages are coded: half types and int8.

Every rank owns a share of the vector. It sends each owner what it has of that share, coded; the
owner adds up what came, in float32 and in the order of the ranks, codes the sum, and sends it to
all. So values are rounded twice, on the way to the owner and on the way back, however many ranks
there are, and all ranks, the owner too, end with what the coded sum says: the same bits.

What a coding loses is kept and added next time on both ways: Tang et al. 2019, "DoubleSqueeze",
arXiv:1905.05957.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Size, Tensor

from phalanx.comm.layout import share_of
from phalanx.parallel.compression.coding import Coding
from phalanx.parallel.compression.compressor import Compressor, Ranks, count_of
from phalanx.parallel.compression.scratch import Scratch, is_finite


class CodedSum:
    """For any number of buckets, one after the other; the memory of the work is one for all."""

    def __init__(self, coding: Coding) -> None:
        self.coding = coding
        self._scratch = Scratch()

    def reduce(self, values: Tensor, ranks: Ranks, kept: Kept) -> None:
        """values, (n,) float32, become the sum over the ranks. Collective."""
        shares = shares_of(len(values), ranks.size, self.coding.unit)
        own = shares[ranks.rank]
        parts = self._parts(shares, "parts")
        for share, part in zip(shares, parts, strict=True):
            self.coding.encode(values[_slice(share)], part, kept.own[_slice(share)])
        arrived = self._parts([own] * ranks.size, "arrived")
        ranks.all_to_all(arrived, parts)
        total = values[_slice(own)]
        for number, part in enumerate(arrived):
            self.coding.decode(part, total, adds=number > 0)
        self.coding.encode(total, parts[ranks.rank], kept.of_sum[: len(own)])
        results = self._parts(shares, "results")
        ranks.all_gather(results, parts[ranks.rank])
        for share, part in zip(shares, results, strict=True):
            self.coding.decode(part, values[_slice(share)], adds=False)

    def sent_bytes(self, count: int, rank: int, num_ranks: int) -> int:
        """To the owners, and of the own share to all."""
        sizes = [
            self.coding.num_bytes(len(s)) for s in shares_of(count, num_ranks, self.coding.unit)
        ]
        return sum(sizes) - sizes[rank] + (num_ranks - 1) * sizes[rank]

    def _parts(self, shares: Sequence[range], name: str) -> list[Tensor]:
        return self._scratch.parts(name, [self.coding.num_bytes(len(share)) for share in shares])


class Kept:
    """What was lost of a bucket and is to be added: of this rank's values, and of the sum of the
    share that it owns. Empty where a coding keeps nothing."""

    def __init__(self, count: int, num_ranks: int, coding: Coding) -> None:
        largest = max(len(share) for share in shares_of(count, num_ranks, coding.unit))
        self.own = torch.zeros(count if coding.keeps else 0)
        self.of_sum = torch.zeros(largest if coding.keeps else 0)

    def forget(self) -> None:
        self.own.zero_()
        self.of_sum.zero_()

    @property
    def num_bytes(self) -> int:
        return self.own.nbytes + self.of_sum.nbytes


class Coded(Compressor):
    """fp16, bf16 and int8."""

    def __init__(self, name: str, coding: Coding) -> None:
        self.name = name
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
            kept = self._kept[number] = Kept(len(values), ranks.size, self._sum.coding)
        with self._scratch.as_float32(values) as working:
            self._sum.reduce(working, ranks, kept)
            if kept.num_bytes and not is_finite(working):
                kept.forget()

    def sent_bytes(self, shapes: Sequence[Size], rank: int, num_ranks: int) -> int:
        return self._sum.sent_bytes(count_of(shapes), rank, num_ranks) if num_ranks > 1 else 0

    def kept_bytes(self) -> int:
        return sum(kept.num_bytes for kept in self._kept.values())


def shares_of(count: int, size: int, unit: int) -> list[range]:
    """[0, count) cut at multiples of `unit` into a share a rank."""
    units = -(-count // unit)
    shares = (share_of(rank, size, units) for rank in range(size))
    return [range(min(s.start * unit, count), min(s.stop * unit, count)) for s in shares]


def _slice(share: range) -> slice:
    return slice(share.start, share.stop)
