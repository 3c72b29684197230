"""Micro-batches of data that have no index: streams, generated data, shards of a program's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from phalanx.comm.layout import share_of
from phalanx.data.hashing import hash_seed
from phalanx.errors import UserError
from phalanx.jobs.worker_environment import worker_environment
from phalanx.parallel.run_group import RunGroup
from phalanx.run.batch import EpochEnd, MicroBatch, Position
from phalanx.run.feed import Feed, FeedPlace
from phalanx.run.micro_batches import MicroBatchSlice
from phalanx.run.randomness import StreamState, seed_micro_batch
from phalanx.run.samples import first_tensor
from phalanx.run.workers import in_processes

OF_DATA = 0x64617461
"""Makes random numbers of data others than those of the computation."""


class StreamFeed(Feed):
    """Samples of an iterable, the same on every rank: each reads all and computes its part.

    The generators of PyTorch, NumPy and Python have a state of their own while samples are read,
    seeded by (seed, epoch), so that a stream that draws from them is the same on every rank.
    """

    def __init__(
        self, samples: Iterable[Any], place: FeedPlace, *, drops_last: bool = False
    ) -> None:
        """drops_last: leaves out a last batch that is not full."""
        self._fewest = place.batch_size if drops_last else 1
        self._samples, self._place = samples, place
        self._loading = dict(place.loading)
        self._collate = self._loading.pop("collate_fn", None) or default_collate

    def micro_batches(self, start: Position, max_steps: int) -> Iterator[MicroBatch]:
        epoch, seen, step = start
        of_data = hash_seed(self._place.seed, OF_DATA)
        state = StreamState(hash_seed(of_data, epoch))
        with state.use():
            items = state.items(read_stream(self._samples, self._loading))
            stream = ReadAhead(items, self._fewest)
            stream.skip(seen)
            samples = stream.take(self._place.batch_size)
        if len(samples) < self._fewest:
            raise no_samples(epoch, seen)

        def is_over() -> bool:
            with state.use():
                return stream.is_over()

        self.num_samples = None
        while True:
            max_steps -= 1
            seen += len(samples)
            end: Literal[True] | EpochEnd = True if max_steps <= 0 else EpochEnd(is_over, is_over)
            slices = self._place.slices(len(samples))
            made = (self._collated(of_data, step, samples, piece) for piece in slices)
            yield from step_batches(made, slices, epoch, step, end, len(samples))
            if end is True and isinstance(self._samples, Iterator):
                return  # its next item may never come, and no epoch follows
            if is_over() if end is True else end.agree():
                self.num_samples = seen
                return
            if end is True:
                return
            step += 1
            with state.use():
                samples = stream.take(self._place.batch_size)

    def _collated(self, seed: int, step: int, samples: list[Any], piece: MicroBatchSlice) -> Any:
        seed_micro_batch(seed, step, piece.number)  # a collate_fn may draw, too
        return self._collate(samples[piece.start : piece.stop])


class GeneratedFeed(Feed):
    """Micro-batches that a function makes, with random numbers of (seed, step, micro-batch).

    Or every rank makes the global batch and takes its rows: the same on any number of ranks.
    """

    def __init__(self, make: Callable[[int], Any], place: FeedPlace) -> None:
        """make: returns so many samples: a micro-batch, or, without a fixed cut, a global batch."""
        self._make, self._batch_size = make, place.batch_size
        self._seed, self._makes_whole = hash_seed(place.seed, OF_DATA), not place.has_fixed_cut
        self._slices = place.slices(place.batch_size)

    def micro_batches(self, start: Position, max_steps: int) -> Iterator[MicroBatch]:
        epoch, seen, step = start
        assert seen % self._batch_size == 0, "global batches are full"
        last = step + max_steps - 1
        for number in range(step, last + 1):
            made = (self._made(number, piece) for piece in self._slices)
            parts = made, self._slices
            yield from step_batches(*parts, epoch, number, number == last, self._batch_size)

    def _made(self, step: int, piece: MicroBatchSlice) -> Any:
        if self._makes_whole:
            seed_micro_batch(self._seed, step, 0)
            whole = self._make(self._batch_size)
            return rows_of(whole, piece.start, piece.stop, length=self._batch_size)
        seed_micro_batch(self._seed, step, piece.number)
        return self._make(piece.stop - piece.start)


def rows_of(batch: Any, start: int, stop: int, *, length: int) -> Any:
    """Return the samples [start, stop) of a batch: of each tensor or array these rows.

    Raises: UserError for a part that has not `length` rows.
    """
    if isinstance(batch, dict):
        return {n: rows_of(part, start, stop, length=length) for n, part in batch.items()}
    if isinstance(batch, (tuple, list)):
        rows = [rows_of(part, start, stop, length=length) for part in batch]
        return type(batch)(*rows) if hasattr(batch, "_fields") else type(batch)(rows)
    if not isinstance(batch, (Tensor, np.ndarray)) or batch.ndim == 0 or len(batch) != length:
        found = f"shape {tuple(batch.shape)}" if hasattr(batch, "shape") else type(batch).__name__
        raise UserError(
            f"data: the function should make {length} samples, but returned {found}, which lacks a "
            "row for each: return one row per sample, or give micro_batches=, for each of which it "
            "is then called"
        )
    return batch[start:stop]


class ShardedFeed(Feed):
    """Micro-batches that each rank reads for itself, as the program has divided its data.

    A micro-batch counts by the length of its first tensor; one without a tensor as one sample. The
    ranks tell each other, once a step, how many samples they have and whether they have any.
    """

    def __init__(self, batches: Iterable[Any], place: FeedPlace) -> None:
        """Raises: UserError where ranks need the same data."""
        if place.evenly:
            raise UserError(
                "sharded=True gives each rank separate samples, but ranks that divide a model need "
                "the same data: leave it out"
            )
        self._batches, self._group, self._loading = batches, place.group, place.loading
        self._numbers = share_of(self._group.rank, self._group.size, place.micro_batches)

    def micro_batches(self, start: Position, max_steps: int) -> Iterator[MicroBatch]:
        epoch, seen, step = start
        steps = ShardedSteps(
            self._group, read_stream(self._batches, self._loading), len(self._numbers), step
        )
        counted = 0
        items, size = steps.take()
        while counted < seen and items:
            counted += size
            items, size = steps.take()
        if counted > seen:
            raise UserError(
                "data: the micro-batches differ from those of the checkpoint: sharded data resume "
                "within an epoch only on the same number of ranks, in the same order"
            )
        if not items:
            raise no_samples(epoch, seen)
        while True:
            max_steps -= 1
            steps.step = step + 1
            end: Literal[True] | EpochEnd = (
                True if max_steps <= 0 else EpochEnd(steps.stream.is_over, steps.are_over)
            )
            pieces = [
                MicroBatchSlice(number, 0, length_of(item))
                for number, item in zip(self._numbers, items, strict=False)
            ]
            yield from step_batches(items, pieces, epoch, step, end, size)
            if end is True or end.agree():
                return
            items, size = steps.take()
            step += 1


class ShardedSteps:
    """Micro-batches of one rank, step by step, as the ranks agree on their sizes and their end."""

    def __init__(
        self, group: RunGroup, stream: Iterator[Any], num_micro_batches: int, step: int
    ) -> None:
        """num_micro_batches: of this rank in a step. step: number of the next in the run."""
        self._group, self.stream, self.step = group, ReadAhead(stream), step
        self._number = num_micro_batches
        self._next: tuple[list[Any], int] | None = None

    def are_over(self) -> bool:
        """Return whether all ranks have no more: the next step is read. Collective."""
        if self._next is None:
            self._next = self._read()
        return not self._next[0]

    def take(self) -> tuple[list[Any], int]:
        """Return this rank's micro-batches of the next step, and the samples of all ranks.
        Collective, where it was not asked for its end.

        Raises: UserError, on every rank, when some ranks have no more.
        """
        taken, self._next = self._next or self._read(), None
        return taken

    def _read(self) -> tuple[list[Any], int]:
        group = self._group
        items = self.stream.take(self._number)
        has_ended = [0.0] * group.size
        has_ended[group.rank] = float(not items)
        size, *ended = group.sum([sum(map(length_of, items)), *has_ended])
        if any(ended) and not all(ended):
            ranks = [str(rank) for rank, is_at_end in enumerate(ended) if is_at_end]
            raise UserError(
                f"data: the iterator of rank{'s' * (len(ranks) > 1)} {', '.join(ranks)} ended "
                f"before step {self.step}, but other ranks have more: give every rank the same "
                "number of micro-batches per epoch, or limit all by steps="
            )
        return items, int(size)


def step_batches(
    made: Iterable[Any],
    pieces: Sequence[MicroBatchSlice],
    epoch: int,
    step: int,
    end: bool | EpochEnd,
    global_samples: int,
) -> Iterator[MicroBatch]:
    """Yield a rank's micro-batches of a step. made: the data of its `pieces`. end: of the last."""
    for position, (data, piece) in enumerate(zip(made, pieces, strict=True), start=1):
        ends_step = position == len(pieces)
        yield MicroBatch(
            data,
            piece.num_samples,
            epoch,
            step,
            piece.number,
            ends_step,
            end if ends_step else False,
            global_samples,
        )


class ReadAhead:
    """Items of an iterator, which is read on where its end is asked for."""

    def __init__(self, items: Iterator[Any], fewest: int = 1) -> None:
        """fewest: items without which it is over."""
        self._items, self._fewest, self._ahead = items, fewest, list[Any]()

    def skip(self, number: int) -> None:
        """Leave out the next items."""
        for _ in islice(self._items, number):
            pass

    def take(self, number: int) -> list[Any]:
        """Return the next items, fewer at the end."""
        first, self._ahead = self._ahead, []
        return [*first, *islice(self._items, number - len(first))]

    def is_over(self) -> bool:
        """Return whether there are no more items."""
        if not self._ahead:
            self._ahead = list(islice(self._items, self._fewest))
        return len(self._ahead) < self._fewest


def read_stream(samples: Iterable[Any], loading: Mapping[str, Any]) -> Iterator[Any]:
    """Return an iterator over the items, by PyTorch's `DataLoader` where `loading` asks for its
    options."""
    if not isinstance(samples, IterableDataset) or not loading:
        return iter(samples)
    options = in_processes(loading)
    with worker_environment():
        return iter(DataLoader(samples, batch_size=None, collate_fn=unchanged, **options))


def unchanged(item: Any) -> Any:
    """Return the item: samples are put together later."""
    return item


def length_of(item: object) -> int:
    """Return the samples of a micro-batch."""
    tensor = first_tensor(item)
    return 1 if tensor is None or not tensor.dim() else len(tensor)


def no_samples(epoch: int, seen: int) -> UserError:
    """Return the error of an epoch without samples."""
    what = f"no samples after the first {seen}" if seen else "no samples"
    again = (
        ": data is read again in each epoch: give an iterable whose __iter__ restarts, or epochs=1"
    )
    return UserError(f"data has {what} in epoch {epoch}{again if epoch else ''}")
