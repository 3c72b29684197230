"""Layout of parts in a flat vector, and of its shares per rank. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CACHE_LINE_BYTES = 64


@dataclass(frozen=True)
class FlatSlice:
    """Elements [begin, end) of part number `part`; they lie at [offset, …) of the flat vector."""

    part: int
    begin: int
    end: int
    offset: int

    @property
    def stop(self) -> int:
        """End of the slice in the flat vector."""
        return self.offset + self.end - self.begin


def share_of(rank: int, size: int, num_elements: int) -> range:
    """Return the contiguous share of `rank` in [0, num_elements); sizes differ by at most one."""
    return range(num_elements * rank // size, num_elements * (rank + 1) // size)


def starts_of(sizes: Sequence[int]) -> list[int]:
    """Return the starts of consecutive parts of `sizes` elements, and the total as the last."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts


def aligned_starts_of(sizes: Sequence[int], alignment: int) -> list[int]:
    """Return the same with each start, and the total, at a multiple of `alignment` elements; the
    parts have gaps between them."""
    return starts_of([-(-size // alignment) * alignment for size in sizes])


def flat_slices(
    sizes: Sequence[int], share: range, largest: int, starts: Sequence[int] | None = None
) -> list[FlatSlice]:
    """Return the slices of parts of `sizes` elements that make up `share` of the flat vector, each
    of at most `largest` elements.

    starts: where the parts start; None when each does where the one before it ends.
    """
    pieces = []
    for part, (start, size) in enumerate(zip(starts or starts_of(sizes), sizes, strict=False)):
        first = max(share.start, start)
        last = min(share.stop, start + size)
        for at in range(first, last, largest):
            stop = min(at + largest, last)
            pieces.append(FlatSlice(part, at - start, stop - start, at))
    return pieces


def elements_in(share: range, starts: Sequence[int], sizes: Sequence[int]) -> int:
    """Count the elements of parts of `sizes`, beginning at `starts`, that lie within `share`."""
    return sum(
        max(0, min(share.stop, start + size) - max(share.start, start))
        for start, size in zip(starts, sizes, strict=True)
    )


def chunks(num_elements: int, largest: int) -> Iterator[slice]:
    """Cut [0, num_elements) into slices of at most `largest` elements."""
    for start in range(0, num_elements, largest):
        yield slice(start, min(start + largest, num_elements))
