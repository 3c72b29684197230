"""Sizes that no memory of this machine holds: refused before they are tried."""

from __future__ import annotations

import os

from phalanx.errors import UserError


def check_fits(num_bytes: int, what: str) -> None:
    """Raises: UserError when it is more than the memory of this machine; `what` begins the line."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > total:
        raise UserError(
            f"{what}: {num_bytes / 1e9:,.1f} GB of memory would be needed, this machine has "
            f"{total / 1e9:,.1f}"
        )
