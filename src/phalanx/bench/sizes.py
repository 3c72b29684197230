"""Parse sizes such as 4, 64KB or 1MB. A KB is 1024 bytes, as in nccl-tests."""

from __future__ import annotations

import re

from phalanx.errors import UserError

UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
DEFAULT_SIZES = tuple(4 * 4**power for power in range(13))  # 4 B … 64 MB


def parse_sizes(words: tuple[str, ...]) -> tuple[int, ...]:
    """Return sorted unique sizes in bytes; a word may hold several, separated by commas.

    Raises: UserError naming the invalid size.
    """
    parts = [part for word in words for part in word.split(",") if part]
    if not parts:
        raise UserError("--sizes needs at least one value, for example --sizes 64KB,1MB,25MB")
    return tuple(sorted({parse_size(part) for part in parts}))


def parse_size(text: str) -> int:
    """Return bytes. Units in any case, with or without the B: 64KB, 64k, 64KiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", text.strip().upper())
    unit = _plain_unit(found[2]) if found else None
    size = float(found[1]) * UNITS[unit] if found and unit in UNITS else 0.0
    if size < 1 or size != int(size):
        raise UserError(
            f"--sizes {text}: not a size of at least one byte; "
            "write 4, 64KB, 1MB or 1GB (a KB is 1024 bytes)"
        )
    return int(size)


def _plain_unit(unit: str) -> str:
    """Normalize a unit: KIB and K are KB."""
    unit = unit.replace("I", "")
    return f"{unit}B" if unit in ("K", "M", "G") else unit
