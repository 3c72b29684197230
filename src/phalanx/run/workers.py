"""Worker processes that read a program's data, beside MPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from phalanx.errors import UserError

MEND = (
    "a fork of a rank shares its connections to the others: leave it out, or say "
    'multiprocessing_context="forkserver"'
)


def check_workers(data: object, loading: Mapping[str, Any], *, num_ranks: int) -> None:
    """Raise UserError for worker processes that would be forks of a rank.

    loading: arguments of PyTorch's `DataLoader`, by which `forkserver` is taken where none is said.
    """
    if num_ranks == 1:
        return
    context = loading.get("multiprocessing_context")
    if loading.get("num_workers") and _start_method(context) == "fork":
        raise UserError(f"loading: multiprocessing_context is fork, and {MEND}")
    if isinstance(data, DataLoader) and data.num_workers:
        context = data.multiprocessing_context
        if context is None or _start_method(context) == "fork":
            raise UserError(
                f"data is a DataLoader whose {data.num_workers} workers fork, and {MEND}"
            )


def _start_method(context: Any) -> str | None:
    method = getattr(context, "get_start_method", None)
    name: str | None = method() if callable(method) else context
    return name
