"""Order of an epoch's samples, split into global batches: the run's order, or that of a sampler. A
program's `DataLoader` is data: its data set, global batches and reading."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from phalanx.data.hashing import hash_seed
from phalanx.data.sampler import epoch_order
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.run.randomness import generators_kept, seed_generators

OF_ORDER = 0x6F726472
"""Separates the random numbers of samplers from those of the computation."""
MOST_PASSES = 1000
"""Most passes over the data in one epoch of a sampler that has an end."""


class EpochOrder(NamedTuple):
    """Samples of an epoch, and where they are cut."""

    indices: Tensor
    """(n,) int64."""
    bounds: Sequence[int]
    """Starts of the global batches, and the end of the last."""


class ShuffledOrder:
    """All samples at random, by (seed, epoch) alone."""

    def __init__(
        self, num_data: int, batch_size: int, seed: int, *, drops_last: bool = False
    ) -> None:
        """drops_last: leaves out samples that fill no batch."""
        self.num_samples = num_data - (num_data % batch_size if drops_last else 0)
        self._num_data, self._batch_size, self._seed = num_data, batch_size, seed

    def of(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        bounds = [*range(0, self.num_samples, self._batch_size), self.num_samples]
        return EpochOrder(self._shuffled(epoch)[: self.num_samples], bounds)

    def _shuffled(self, epoch: int) -> Tensor:
        return epoch_order(self._num_data, self._seed, epoch)


class DrawnOrder:
    """Indices that a loader's samplers give, drawn once an epoch, on every rank alike.

    The generators that samplers share with the program are seeded by (seed, epoch) meanwhile, and
    left as they were. A sampler's generator continues from epoch to epoch; a resumed run draws the
    former epochs again, and compares the last with that of the checkpoint.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        num_data: int,
        *,
        seed: int,
        steps: int | None,
        drawn: dict[str, Any],
    ) -> None:
        """steps: of the run, after which a sampler without length is not asked for more. drawn: the
        last epoch and the digest of its indices, in checkpoints."""
        self.num_samples = num_drawn(loader)
        self._loader, self._num_data, self._seed, self._drawn = loader, num_data, seed, drawn
        self._limit = None if length_of(loader.batch_sampler) is not None else steps
        samplers = (loader.sampler, loader.batch_sampler, sampler_of(loader))
        self._settable = {id(s): s for s in samplers if callable(getattr(s, "set_epoch", None))}
        self._next = 0
        self._order: EpochOrder | None = None

    def begin(self, epoch: int) -> None:
        """Set the next epoch of the samplers; the program may set another."""
        for sampler in self._settable.values():
            sampler.set_epoch(epoch)  # type: ignore[union-attr]

    def of(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch.

        Raises: UserError where a resumed run draws other indices than the run before.
        """
        expected = dict(self._drawn)
        while self._order is None or self._next <= epoch:
            # A sampler that is told the epoch has no other state.
            self._next = epoch if self._settable else self._next
            self._order = self.draw(self._next)
            self._drawn.update(epoch=self._next, digest=digest_of(self._order))
            if expected.get("epoch") == self._next and expected != self._drawn:
                raise UserError(
                    f"data: {_name(self._loader)} draws different samples in epoch {self._next} "
                    "from the run of the checkpoint: seed it, by generator= or by set_epoch, so "
                    "that it draws the same ones"
                )
            self._next += 1
            self.begin(self._next)
        return self._order

    def agree(self, epoch: int, group: RunGroup) -> None:
        """Raise UserError, on every rank, where a rank draws other samples. Collective."""
        self.check_same(self.of(epoch), group)

    def check_same(self, order: EpochOrder, group: RunGroup) -> None:
        """Raise UserError, on every rank, where a rank has drawn another order. Collective."""
        group.together(lambda: check_same(group, digest_of(order), _name(self._loader)))

    def draw(self, epoch: int) -> EpochOrder:
        """Return the samples that one process would read next, with random numbers of an epoch."""
        loader = self._loader
        with generators_kept():
            seed_generators(hash_seed(hash_seed(self._seed, OF_ORDER), epoch))
            batches = iter(global_batches(loader))
            is_begun = loader.persistent_workers and epoch > 0
            if loader.generator is not None and not is_begun:  # its iterator does so, too
                drawn = torch.empty((), dtype=torch.int64, device=loader.generator.device)
                drawn.random_(generator=loader.generator)
            found = self._checked(islice(batches, self._limit))
        indices = torch.tensor([*chain.from_iterable(found)], dtype=torch.int64, device="cpu")
        return EpochOrder(indices, [0, *accumulate(map(len, found))])

    def _checked(self, batches: Iterable[Iterable[Any]]) -> list[list[int]]:
        """Return batches of numbers of samples. Raises: UserError for anything else."""
        found, name, count = list[list[int]](), _name(self._loader), 0
        for batch in batches:
            try:
                numbers = [operator.index(each) for each in batch]
            except TypeError as error:
                raise UserError(
                    f"data: {name} gives {batch!r:.80}, but a run takes lists of sample indices: "
                    "give a data set with __getitem__"
                ) from error
            wrong = next((each for each in numbers if not 0 <= each < self._num_data), None)
            if wrong is not None or not numbers:
                what = "an empty batch" if wrong is None else f"sample {wrong}"
                raise UserError(f"data: {name} gives {what}, but data has {self._num_data} samples")
            count += len(numbers)
            if count > MOST_PASSES * self._num_data + 10**6 and self._limit is None:
                raise UserError(f"data: {name} does not end within an epoch: give steps=")
            found.append(numbers)
        return found


SampleOrder = ShuffledOrder | DrawnOrder
"""Orders of all epochs, the same on every rank: `num_samples` of each, None where it is not known
before it is drawn, and `of` an epoch, which is not before the last one asked for."""


def sampler_of(loader: DataLoader[Any]) -> Any:
    """Return the sampler whose indices a loader puts together."""
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def global_batches(loader: DataLoader[Any]) -> Iterable[Iterable[Any]]:
    """Return the batches of one process; of a `DistributedSampler` those of all its replicas."""
    batches, sampler = loader.batch_sampler, sampler_of(loader)
    assert batches is not None, "checked before"
    if type(batches) is not BatchSampler or not isinstance(sampler, DistributedSampler):
        return batches
    return _of_replicas(sampler, batches.batch_size * sampler.num_replicas, batches.drop_last)


def _of_replicas(
    sampler: DistributedSampler[Any], batch_size: int, drop_last: bool
) -> Iterator[Sequence[int]]:
    replicas = []
    for rank in range(sampler.num_replicas):
        replica = copy(sampler)
        replica.rank = rank
        replicas.append(list(replica))
    indices = list(chain.from_iterable(zip(*replicas, strict=True)))
    for start in range(0, len(indices), batch_size):
        batch = indices[start : start + batch_size]
        if len(batch) == batch_size or not drop_last:
            yield batch


def num_drawn(loader: DataLoader[Any]) -> int | None:
    """Return the samples that a loader's sampler gives in an epoch; None: not known."""
    batches, sampler = loader.batch_sampler, sampler_of(loader)
    number = length_of(sampler)
    if type(batches) is not BatchSampler or number is None:
        return None
    size = batches.batch_size
    if isinstance(sampler, DistributedSampler):
        number, size = number * sampler.num_replicas, size * sampler.num_replicas
    return number - number % size if batches.drop_last else number


def length_of(sampler: Any) -> int | None:
    """Return the length of a sampler; None: it has none, nor has that which it takes from."""
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def digest_of(order: EpochOrder) -> str:
    """Return a digest of the samples and their cut."""
    digest = hashlib.sha256(order.indices.numpy().tobytes())
    digest.update(torch.tensor(order.bounds, device="cpu").numpy().tobytes())
    return digest.hexdigest()[:12]


def check_same(group: RunGroup, digest: str, name: str) -> None:
    """Raise UserError, on every rank, where one has another digest than rank 0. Collective."""
    own = [0.0] * group.size
    own[group.rank] = float(int(digest, 16))
    digests = group.sum(own)
    other = next((rank for rank, each in enumerate(digests) if each != digests[0]), None)
    if other is not None:
        raise UserError(
            f"data: {name} of rank {other} draws different samples from that of rank 0: use the "
            "same seed on every rank and num_replicas=1, since the run divides samples among ranks"
        )


def _name(loader: DataLoader[Any]) -> str:
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        return f"batch_sampler {type(batches).__name__}"
    return f"sampler {type(sampler_of(loader)).__name__}"


OPTIONS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor", "pin_memory_device"),
)


def reading_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments of a loader that say how samples are read, where they are not the
    defaults.

    Raises: UserError where it is read in a way that a run cannot follow.
    """
    check_loader(loader)
    options = {name: getattr(loader, name, None) for name in OPTIONS}
    if options["collate_fn"] is default_collate:
        del options["collate_fn"]
    return {name: value for name, value in options.items() if value}


def unwrap_loader(
    data: object, batch_size: int | None, loading: dict[str, Any] | None
) -> tuple[object, int | None, dict[str, Any] | None]:
    """Return data, size of the global batch and reading, which a `DataLoader` brings with it.

    Raises: UserError when it cannot be followed.
    """
    if isinstance(data, DataLoader):
        loading = {**reading_options(data), **(loading or {})}
        batch_size = size_of_batches(data, batch_size)
        data = data.dataset
    return data, batch_size, loading


def size_of_batches(loader: DataLoader[Any], given: int | None) -> int:
    """Return the samples of a global batch; of a usual one, where a batch sampler makes them.

    given: by the program. Raises: UserError where it is another.
    """
    batches, sampler = loader.batch_sampler, sampler_of(loader)
    size: Any = loader.batch_size or getattr(batches, "batch_size", None)
    if type(batches) is not BatchSampler and not isinstance(loader.dataset, IterableDataset):
        number = length_of(batches)
        if not isinstance(size, int) and number is not None:
            size = -(-len(loader.dataset) // max(1, number))  # type: ignore[arg-type]
        if given is None and not isinstance(size, int):
            raise UserError(
                f"data is a DataLoader with batch_sampler={type(batches).__name__}, which has no "
                "length: give batch_size=, the samples of a usual global batch"
            )
        return int(given or size)
    if isinstance(sampler, DistributedSampler):
        size *= sampler.num_replicas
    if given not in (None, size):
        what = f"that of the DataLoader is {size}"
        if isinstance(sampler, DistributedSampler):
            what += f", of all {sampler.num_replicas} replicas of its DistributedSampler"
        raise UserError(
            f"batch_size={given}, but {what}: give the number of samples of the global batch, over "
            "all ranks, once"
        )
    return int(size)


def is_shuffled(loader: DataLoader[Any]) -> bool:
    """Return whether a loader asks for any random order of all samples, and not for a certain one:
    shuffle=True without a generator."""
    sampler = sampler_of(loader)
    return (
        type(loader.batch_sampler) is BatchSampler
        and type(sampler) is RandomSampler
        and sampler.generator is None
        and loader.generator is None
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )


def order_of(
    loader: DataLoader[Any] | None,
    num_data: int,
    batch_size: int,
    *,
    seed: int,
    steps: int | None,
    drawn: dict[str, Any],
) -> SampleOrder:
    """Return the order of samples in a run. loader: None: data came without. Others: as of
    `DrawnOrder`."""
    if loader is None:
        return ShuffledOrder(num_data, batch_size, seed)
    if is_shuffled(loader):
        return ShuffledOrder(num_data, batch_size, seed, drops_last=drops_last(loader))
    return DrawnOrder(loader, num_data, seed=seed, steps=steps, drawn=drawn)


def drops_last(loader: DataLoader[Any]) -> bool:
    """Return whether a loader leaves out a last batch that is not full."""
    return bool(loader.drop_last or getattr(loader.batch_sampler, "drop_last", False))


def samples_in_epoch(loader: DataLoader[Any] | None, num_data: int) -> int | None:
    """Return the samples of an epoch; None: not known before it is drawn. Raises: UserError where
    there are none."""
    number = num_data if loader is None else num_drawn(loader)
    if number == 0:
        dropped = " in full batches, and drop_last=True drops the rest" if num_data else ""
        raise UserError(f"data has no samples{dropped}")
    return number


def describe_order(loader: DataLoader[Any] | None) -> dict[str, str]:
    """Return what tells the order of a loader from the run's own, which has no words."""
    if loader is None or isinstance(loader.dataset, IterableDataset):
        return {}
    batches, words = loader.batch_sampler, []
    if type(batches) is not BatchSampler:
        words = [f"batch_sampler {type(batches).__name__}"]
    elif not is_shuffled(loader):
        words = [type(sampler_of(loader)).__name__]
    words += ["drop_last"] * drops_last(loader)
    return {"order of samples": ", ".join(words)} if words else {}


def takes_all(loader: DataLoader[Any]) -> bool:
    """Return whether an evaluation by a loader is of all samples once, whatever their order."""
    sampler = sampler_of(loader)
    is_whole = type(sampler) in (SequentialSampler, DistributedSampler) or is_shuffled(loader)
    return type(loader.batch_sampler) is BatchSampler and is_whole and not drops_last(loader)


def check_loader(loader: DataLoader[Any]) -> None:
    """Raises: UserError for a loader whose batches a run cannot make itself."""
    if loader.batch_sampler is None:
        raise UserError(
            "data is a DataLoader with batch_size=None: give its data set, and batch_size= to "
            "phalanx.start, which makes the same global batches on any number of ranks; or give "
            "sharded=True, if each rank reads separate micro-batches"
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise UserError(
            f"data is a {type(loader).__name__}, which changes how a DataLoader is iterated: give "
            "a DataLoader of its data set, with its sampler; or sharded=True, if each rank reads "
            "separate micro-batches"
        )
