"""Layout of parts in a flat vector, and of its shares per rank. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

CACHE_LINE_BYTES = 64


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


def by_owner(
    sizes: Sequence[int], owners: Sequence[int], num_owners: int, alignment: int
) -> tuple[list[int], list[range]]:
    """Return where parts of `sizes` elements begin in a vector in which those of an owner lie side
    by side, each at a multiple of `alignment`; and the range of each owner.

    owners: of the parts.
    """
    starts, ranges, end = [0] * len(sizes), [], 0
    for owner in range(num_owners):
        begin = end
        for number, size in enumerate(sizes):
            if owners[number] == owner:
                starts[number] = end
                end += -(-size // alignment) * alignment
        ranges.append(range(begin, end))
    return starts, ranges


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
