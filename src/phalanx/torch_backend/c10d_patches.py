"""Patches of torch.distributed functions that refuse every backend but PyTorch's own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from phalanx.torch_backend.process_group import ProcessGroupMPI
from phalanx.torch_backend.process_group_base import ProcessGroupMPIBase


def patch_set_pg_timeout() -> None:
    """Patch `_set_pg_timeout`, which is private but called by training frameworks."""
    original = c10d._set_pg_timeout
    if getattr(original, "patched_by_phalanx", False):
        return

    @functools.wraps(original)
    def set_timeout(timeout: timedelta, group: Any = None) -> None:
        asked = group or c10d._get_default_group()
        if isinstance(asked, ProcessGroupMPIBase):
            asked.set_timeout(timeout)
        else:
            original(timeout, group)

    set_timeout.patched_by_phalanx = True  # type: ignore[attr-defined]
    c10d._set_pg_timeout = set_timeout


def patch_split_group() -> None:
    """Patch `split_group`, which refuses backend mpi without a GPU."""
    original: Any = c10d.split_group
    if getattr(original, "patched_by_phalanx", False):
        return

    @functools.wraps(original)
    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        parent = parent_pg or c10d._get_default_group()
        if type(parent) is ProcessGroupMPI and split_ranks and not args:
            return _split(parent, split_ranks, **kwargs)
        return original(parent_pg, split_ranks, *args, **kwargs)

    split_group.patched_by_phalanx = True  # type: ignore[attr-defined]
    c10d.split_group = dist.split_group = split_group


def _split(
    parent: Any,
    split_ranks: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    pg_options: Any = None,  # noqa: ARG001
    group_desc: str | None = None,
    backend: Any = None,  # noqa: ARG001
) -> Any:
    """Return the new group that holds this rank of `parent`; None: it is in none."""
    for ranks in split_ranks:
        if parent.rank() in ranks:
            return dist.new_group(
                [dist.get_global_rank(parent, rank) for rank in sorted(ranks)],
                timeout=timeout or parent.options._timeout,
                # PyTorch lets members make a group by themselves, but not for the name "mpi".
                backend=",".join(f"{device.type}:mpi" for device in parent._device_types),
                use_local_synchronization=True,
                group_desc=group_desc,
            )
    return None
