"""Micro-batches of a rank, epoch by epoch, from samples by index."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from phalanx.comm.layout import share_of
from phalanx.data.hashing import hash_seed
from phalanx.data.samples import PartialBatch, Samples
from phalanx.parallel.run_group import RunGroup
from phalanx.run.batch import MicroBatch, Position
from phalanx.run.micro_batches import (
    MicroBatchSlice,
    cut_micro_batches,
    micro_batches_of_rank,
)
from phalanx.run.order import SampleOrder
from phalanx.run.packed import PackedSamples
from phalanx.run.samples import seeded_samples

OF_SAMPLES = 0x736D706C
"""Makes random numbers of samples others than those of the computation."""


class Feed:
    """One rank's micro-batches. How a global batch is cut depends on options alone, never on the
    number of ranks."""

    num_samples: int | None = None
    """Samples of an epoch, over all ranks; None: known when it ends."""
    num_damaged = 0
    """Samples of this rank that were left out so far because they are damaged."""
    is_divisible = False
    """True if it can be divided among the ranks anew, by `of`."""

    def micro_batches(self, start: Position, max_steps: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches that are left of an epoch from `start` on.

        max_steps: updates after which the epoch ends, whatever is left.
        """
        raise NotImplementedError

    def of(self, numbers: Sequence[int], first: Sequence[int] | None = None) -> Feed:
        """Return a feed of the micro-batches of each global batch that have these numbers.

        first: numbers of the first step alone; None: as all others.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class FeedPlace:
    """The cut of global batches, and this rank's part of it."""

    batch_size: int
    """Samples of a full global batch."""
    micro_batches: int
    """Micro-batches of one, over all ranks."""
    has_fixed_cut: bool = False
    """True if their number does not depend on that of the ranks."""
    seed: int
    rank: int
    """Number of this rank's part of each global batch."""
    num_ranks: int
    """Parts of a global batch."""
    evenly: bool = False
    """Every rank gets as many micro-batches, see `micro_batches_of_rank`."""
    loading: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of PyTorch's `DataLoader`."""
    group: RunGroup = field(default_factory=RunGroup)

    def slices(self, num_samples: int) -> list[MicroBatchSlice]:
        """Return this rank's micro-batches of a global batch."""
        return micro_batches_of_rank(
            num_samples,
            number=self.micro_batches,
            rank=self.rank,
            num_ranks=self.num_ranks,
            evenly=self.evenly,
        )


class MappedFeed(Feed):
    """The micro-batches of a feed, each as a function changes it."""

    def __init__(self, feed: Feed, change: Callable[[MicroBatch], MicroBatch]) -> None:
        self._feed, self._change = feed, change
        self.num_samples, self.num_damaged = feed.num_samples, feed.num_damaged
        self.is_divisible = feed.is_divisible

    def micro_batches(self, start: Position, max_steps: int) -> Iterator[MicroBatch]:
        feed = self._feed
        for batch in feed.micro_batches(start, max_steps):
            self.num_damaged = feed.num_damaged
            yield self._change(batch)
        self.num_samples = feed.num_samples

    def of(self, numbers: Sequence[int], first: Sequence[int] | None = None) -> Feed:
        return MappedFeed(self._feed.of(numbers, first), self._change)


class IndexedFeed(Feed):
    """Global batches of samples in an order that is the same on every rank."""

    is_divisible = True

    def __init__(
        self, samples: Samples, order: SampleOrder, place: FeedPlace, *, seeds_samples: bool = False
    ) -> None:
        """seeds_samples: gives each sample random numbers of (seed, epoch, sample)."""
        self._samples, self._order, self._place = samples, order, place
        self._seeds_samples, self.num_samples = seeds_samples, order.num_samples
        self._numbers: Sequence[int] = share_of(place.rank, place.num_ranks, place.micro_batches)
        self._first: Sequence[int] | None = None

    def _cut(self, size: int, own: Sequence[int]) -> list[MicroBatchSlice]:
        place = self._place
        if place.evenly:
            return place.slices(size)
        return cut_micro_batches(size, number=place.micro_batches, own=own)

    def of(self, numbers: Sequence[int], first: Sequence[int] | None = None) -> IndexedFeed:
        feed = copy(self)
        feed._numbers, feed._first = numbers, first
        return feed

    def micro_batches(self, start: Position, max_steps: int) -> Iterator[MicroBatch]:
        epoch, seen, step = start
        order, bounds = self._order.of(epoch)
        begin = bisect_left(bounds, seen)
        cuts = list(pairwise(bounds[begin : begin + min(max_steps, len(bounds)) + 1]))
        of_first = self._numbers if self._first is None else self._first
        slices = [
            (first, stop - first, piece)
            for first, stop in cuts
            for piece in self._cut(stop - first, self._numbers if first > seen else of_first)
        ]
        indices = [order[first + piece.start : first + piece.stop] for first, _, piece in slices]
        samples = self._samples
        if self._seeds_samples:
            samples = seeded_samples(
                samples, hash_seed(hash_seed(self._place.seed, OF_SAMPLES), epoch)
            )
        if isinstance(samples, PackedSamples):
            batches = samples.batches_of(indices, epoch, [first for first, _, _ in slices])
        else:
            batches = samples.batches(indices)
        for position, ((first, size, piece), data) in enumerate(zip(slices, batches, strict=True)):
            is_last = position + 1 == len(slices)
            ends_step = is_last or slices[position + 1][0] != first
            num_samples = piece.num_samples
            if isinstance(data, PartialBatch):
                self.num_damaged += 0 if piece.is_padding else data.num_damaged
                num_samples, data = min(num_samples, data.num_samples), data.data
            yield MicroBatch(
                data,
                num_samples,
                epoch,
                step,
                piece.number,
                ends_step,
                is_last,
                size,
                indices=indices[position],
            )
            step += ends_step
