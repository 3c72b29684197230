"""A program's `DataLoader` as data: its data set, global batches and reading."""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from phalanx.errors import UserError
from phalanx.run.order import (
    DrawnOrder,
    FullBatchesOrder,
    SampleOrder,
    ShuffledOrder,
    length_of,
    num_drawn,
    sampler_of,
)

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
) -> tuple[object, int, dict[str, Any]]:
    """Return data, size of the global batch and reading, which a `DataLoader` brings with it.

    Raises: UserError when it cannot be followed, or there is no size.
    """
    if isinstance(data, DataLoader):
        loading = {**reading_options(data), **(loading or {})}
        batch_size = size_of_batches(data, batch_size)
        data = data.dataset
    if batch_size is None:
        raise UserError("batch_size is missing: the samples of a global batch, over all ranks")
    return data, batch_size, loading or {}


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
                "length: say batch_size=, the samples of a usual global batch"
            )
        return int(given or size)
    if isinstance(sampler, DistributedSampler):
        size *= sampler.num_replicas
    if given not in (None, size):
        what = f"that of the DataLoader is {size}"
        if isinstance(sampler, DistributedSampler):
            what += f", of all {sampler.num_replicas} replicas of its DistributedSampler"
        raise UserError(
            f"batch_size={given}, and {what}: say once how many samples the global batch has, over "
            "all ranks"
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
        return (FullBatchesOrder if drops_last(loader) else ShuffledOrder)(
            num_data, batch_size, seed
        )
    return DrawnOrder(loader, num_data, seed=seed, steps=steps, drawn=drawn)


def drops_last(loader: DataLoader[Any]) -> bool:
    """Return whether a loader leaves out a last batch that is not full."""
    return bool(loader.drop_last or getattr(loader.batch_sampler, "drop_last", False))


def samples_in_epoch(loader: DataLoader[Any] | None, num_data: int) -> int | None:
    """Return the samples of an epoch; None: not known before it is drawn. Raises: UserError where
    there are none."""
    number = num_data if loader is None else num_drawn(loader)
    if number == 0:
        dropped = " in full batches: drop_last=True leaves the others out" if num_data else ""
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
            "phalanx.start: the run cuts global batches itself, the same on any number of ranks; "
            "or sharded=True, where each rank reads micro-batches of its own"
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise UserError(
            f"data is a {type(loader).__name__}, which changes how a DataLoader is iterated: give "
            "a DataLoader of its data set, with its sampler; or sharded=True, where each rank "
            "reads micro-batches of its own"
        )
