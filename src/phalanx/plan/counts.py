"""Numbers of ranks as a user writes them."""

from __future__ import annotations

import re

from phalanx.errors import UserError

MOST_RANKS = 2**20


def parse_counts(text: str) -> list[int]:
    """Return 1, 2, 4 … 1024 of `1..1024`, and 1, 2, 6 of `1,2,6`.

    Raises: UserError for anything else.
    """
    if found := re.fullmatch(r"(\d+)\.\.(\d+)", text.strip()):
        low, high = int(found[1]), int(found[2])
        counts = []
        while 0 < low < high:
            counts.append(low)
            low *= 2
        counts.append(high)
        is_valid = 0 < int(found[1]) <= high
    else:
        words = [word.strip() for word in text.split(",")]
        is_valid = all(word.isdecimal() and int(word) > 0 for word in words)
        counts = sorted({int(word) for word in words}) if is_valid else []
    if not is_valid or max(counts) > MOST_RANKS:
        raise UserError(
            f"--ranks {text}: write 1..1024 for powers of two, or 1,2,6,12; at most {MOST_RANKS}"
        )
    return counts
