"""Long messages in segments, so that a rank reduces one while the next one arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from phalanx.comm.buffer import Buffer
from phalanx.comm.layout import chunks
from phalanx.comm.transport import PendingExchange, Transport

SEGMENT_BYTES = 256 * 1024  # a few of them stay in a core's cache
NUM_PREFETCHED = 2  # segments in flight while one is reduced


def segments_of(buffer: Buffer, *, itemsize: int | None = None) -> list[Buffer]:
    """`buffer` in segments of at most SEGMENT_BYTES; none of an empty one.

    itemsize: of the elements by which to count, where they travel as another type.
    """
    largest = max(1, SEGMENT_BYTES // (itemsize or buffer.dtype.itemsize))
    return [buffer.part(cut.start, cut.stop) for cut in chunks(buffer.count, largest)]


def receive_segments(
    transport: Transport, targets: Sequence[Buffer], source: int
) -> Iterator[tuple[Buffer, Buffer]]:
    """Yield (what `source` sent for it, the segment itself) for each segment of `targets`, in
    order.

    The received segment is in reused memory: it is valid until the next one is requested.
    """
    segments = [segment for target in targets for segment in segments_of(target)]
    if not segments:
        return
    largest = max(segment.count for segment in segments)
    num_places = min(len(segments), NUM_PREFETCHED + 1)
    places = [transport.scratch(largest, segments[0].dtype) for _ in range(num_places)]
    on_their_way: deque[tuple[Buffer, PendingExchange]] = deque()
    expected = 0
    for number, segment in enumerate(segments):
        while expected < min(len(segments), number + num_places):
            place = places[expected % num_places].part(0, segments[expected].count)
            on_their_way.append((place, transport.start([], [(place, source)])))
            expected += 1
        term, exchange = on_their_way.popleft()
        exchange.finish()
        yield term, segment
