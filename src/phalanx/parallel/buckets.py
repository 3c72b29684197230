"""Which gradients are reduced together. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def plan_buckets(
    num_bytes: Sequence[int], kinds: Sequence[str], order: Sequence[int], largest_bytes: int
) -> list[list[int]]:
    """Parameters by number, cut into buckets in the order in which their gradients come.

    num_bytes, kinds: of each parameter; a bucket holds one kind, which is its dtype.
    order: every number once.
    largest_bytes: of a bucket, unless a single parameter has more.
    """
    buckets: list[list[int]] = []
    open_buckets: dict[str, list[int]] = {}
    for number in order:
        kind = kinds[number]
        bucket = open_buckets.get(kind)
        filled = sum(num_bytes[other] for other in bucket or [])
        if bucket is None or filled + num_bytes[number] > largest_bytes:
            bucket = open_buckets[kind] = []
            buckets.append(bucket)
        bucket.append(number)
    # One is reduced after the other: first the one that is full first.
    place = {number: position for position, number in enumerate(order)}
    return sorted(buckets, key=lambda bucket: max(place[number] for number in bucket))


def largest_bucket_bytes(ranks: int, cache_bytes: int) -> int:
    """All ranks' buckets together fill half of the last level of cache: what one rank writes the
    others read from there."""
    return max(2**20, cache_bytes // 2 // ranks)
