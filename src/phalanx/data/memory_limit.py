"""Refusal of allocations that exceed the memory of this machine or container."""

from __future__ import annotations

import os

from phalanx.errors import UserError
from phalanx.launch.cores import memory_limit_bytes


def check_fits(num_bytes: int, what: str) -> None:
    """Raises: UserError when it is more than this process may have; `what` begins the line."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = min(installed, memory_limit_bytes() or installed)
    if num_bytes > total:
        raise UserError(
            f"{what}: {num_bytes / 1e9:,.1f} GB of memory would be needed, this "
            f"{'machine' if total == installed else 'container'} has {total / 1e9:,.1f}"
        )
