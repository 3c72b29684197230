"""Where each gradient lies in one flat buffer, and how the buffer is cut into buckets. Pure."""

from __future__ import annotations

from collections.abc import Sequence

# p buckets of a node stay in a 32 MB last-level cache up to 8 ranks, and one call's fixed cost
# is far below the time that 4 MB take.
BUCKET_BYTES = 4 * 2**20


def offsets(sizes: Sequence[int]) -> list[int]:
    """Start of each of the consecutive parts of `sizes` elements, and the total as the last."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts


def buckets(num_elements: int, itemsize: int, bucket_bytes: int) -> list[tuple[int, int]]:
    """Cut [0, num_elements) into ranges [start, stop) of at most `bucket_bytes`, all but the last
    equally large; at least one element each."""
    step = max(1, bucket_bytes // itemsize)
    return [(at, min(at + step, num_elements)) for at in range(0, num_elements, step)]
