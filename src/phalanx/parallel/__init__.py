"""Strategies of parallelism, one per file, and `DataParallel` for your own programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.parallel.data_parallel import DataParallel

__all__ = ["DataParallel"]


def __getattr__(name: str) -> Any:
    """Load `DataParallel` when it is asked for: the strategies of `phalanx train` do without."""
    if name == "DataParallel":
        from phalanx.parallel.data_parallel import DataParallel

        return DataParallel
    raise AttributeError(f"module {__name__} has no attribute {name}")
