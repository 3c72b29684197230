"""A program's `DataLoader` as data: its data set, batch size and reading, not its order."""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from phalanx.errors import UserError

OPTIONS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor"),
)


def reading_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments of a loader that say how samples are read, where they are not the
    defaults.

    Raises: UserError where it chooses samples, of which a run reads each once.
    """
    check_sampler(loader)
    options = {name: getattr(loader, name) for name in OPTIONS}
    if options["collate_fn"] is default_collate:
        del options["collate_fn"]
    return {name: value for name, value in options.items() if value}


def unwrap_loader(
    data: object, batch_size: int | None, loading: dict[str, Any] | None
) -> tuple[object, int, dict[str, Any]]:
    """Return data, size of the global batch and reading, which a `DataLoader` brings with it.

    Raises: UserError when it has an order or a size that a run cannot follow, or there is no size.
    """
    if isinstance(data, DataLoader):
        options = reading_options(data)
        if isinstance(data.sampler, SequentialSampler):
            raise UserError(
                "data is a DataLoader with shuffle=False, and a run shuffles, the same on any "
                "number of ranks: give DataLoader(..., shuffle=True), or the data set itself"
            )
        if data.drop_last:
            raise UserError(
                "data is a DataLoader with drop_last=True, and a run trains with every sample: "
                "leave it out, or leave samples out of the data set"
            )
        if batch_size not in (None, data.batch_size):
            raise UserError(
                f"batch_size={batch_size}, and that of the DataLoader is {data.batch_size}: say "
                "once how many samples the global batch has, over all ranks"
            )
        batch_size, data = data.batch_size, data.dataset
        loading = {**options, **(loading or {})}
    if batch_size is None:
        raise UserError("batch_size is missing: the samples of a global batch, over all ranks")
    return data, batch_size, loading or {}


def check_sampler(loader: DataLoader[Any]) -> None:
    """Raises: UserError for a sampler that leaves samples out or repeats them."""
    sampler = loader.sampler
    if loader.batch_size is None:
        raise UserError(
            "data is a DataLoader without a batch_size: give its data set, and batch_size= to "
            "phalanx.start: the run cuts global batches itself, the same on any number of ranks"
        )
    is_known = isinstance(loader.dataset, IterableDataset) or type(sampler) is SequentialSampler
    if type(sampler) is RandomSampler:
        is_known = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    if not is_known:
        raise UserError(
            f"data is a DataLoader with a sampler of its own, {type(sampler).__name__}, and a run "
            "shares samples out itself, each once an epoch: leave it out and say shuffle=True"
        )
