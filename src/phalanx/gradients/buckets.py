"""Assignment of gradients to buckets that are reduced together. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.comm.link import Link

MESSAGE_OVERHEAD_S = 50e-6
"""Overhead of a message beside the network's latency: a guess for ranks that sleep and wake."""
UNKNOWN_LINK = Link(bandwidth_bytes_per_s=10e9 / 8, latency_s=50e-6)
"""Assumed for an unknown network: 10 Gbit/s Ethernet."""
TRANSFER_TO_LATENCY = 8
"""Transfer time of a bucket over its latency: costs an eighth more than one single bucket."""
LAST_BUCKET_DIVISOR = 8
"""The last bucket, which cannot be hidden, is at most this fraction of the others: 1/8."""


def assign_buckets(
    num_bytes: Sequence[int],
    kinds: Sequence[str],
    order: Sequence[int],
    largest_bytes: int,
    last_bytes: int | None = None,
) -> list[list[int]]:
    """Return buckets of parameter numbers, in the order in which their gradients become ready.

    num_bytes, kinds: of each parameter; a bucket holds one kind, which is its dtype.
    order: every number once.
    largest_bytes: of a bucket, unless a single parameter has more.
    last_bytes: of the last bucket, unless a single parameter has more, or there is no more than
        that before it; None: as of the others.
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
    buckets.sort(key=lambda bucket: max(place[number] for number in bucket))
    if last_bytes is not None:
        *others, last = buckets
        before, after = _cut_last(last, num_bytes, last_bytes)
        if before and (others or sum(num_bytes[number] for number in before) > last_bytes):
            return [*others, before, after]
    return buckets


def _cut_last(
    bucket: list[int], num_bytes: Sequence[int], last_bytes: int
) -> tuple[list[int], list[int]]:
    """Split `bucket` in two, the second of which has at most `last_bytes` or one parameter."""
    first, filled = len(bucket) - 1, num_bytes[bucket[-1]]
    while first > 0 and filled + num_bytes[bucket[first - 1]] <= last_bytes:
        first -= 1
        filled += num_bytes[bucket[first]]
    return bucket[:first], bucket[first:]


def largest_bucket_bytes(ranks: int, cache_bytes: int) -> int:
    """Return the bucket size at which the buckets of all ranks fill half of the last-level cache:
    peers read from it what one rank writes."""
    return max(2**20, cache_bytes // 2 // ranks)


def network_bucket_bytes(link: Link) -> int:
    """Return the bucket size that amortizes latency, and no larger, so that there are several.

    Its transfer takes `TRANSFER_TO_LATENCY` times the latency of its two rounds.
    """
    bandwidth = link.bandwidth_bytes_per_s or UNKNOWN_LINK.bandwidth_bytes_per_s
    assert bandwidth is not None, "said above"
    return max(
        2**16, int(TRANSFER_TO_LATENCY * 2 * (link.latency_s + MESSAGE_OVERHEAD_S) * bandwidth)
    )


def largest_bytes(
    ranks: int,
    whole: int,
    *,
    on_one_node: bool,
    cache_bytes: int,
    link: Link | None,
    overlaps: bool,
) -> int:
    """Return the bytes of the largest bucket of gradients of `whole` bytes.

    link: emulated one between the nodes; None: a network of unknown speed.
    """
    if on_one_node:
        return largest_bucket_bytes(ranks, cache_bytes)
    return network_bucket_bytes(link or UNKNOWN_LINK) if overlaps else whole


def overlaps_by_default(ranks: int, *, on_one_node: bool) -> bool:
    """Return whether sums take longer to transfer than to compute, so that the processor has time
    for something else meanwhile. Within a node it has not: there summing is arithmetic itself."""
    return ranks > 1 and not on_one_node
