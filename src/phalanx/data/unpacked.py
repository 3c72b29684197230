"""Bounds for compressed content: a small file that unpacks without end must not fill the memory."""

from __future__ import annotations

import zlib

from phalanx.errors import UserError
from phalanx.jobs.cores import check_fits

MAX_EXPANSION = 100
"""Records and arrays unpack to ten or twenty times their size."""
TEXT_BYTES, ARRAY_BYTES = 64 * 2**20, 512 * 2**20
"""Always allowed: of text, which takes many times as much when it is parsed; of arrays, of which
those of one value take next to nothing on disk."""
MAX_DEFLATE = 1032
"""No content of gzip or zlib unpacks to more than this many times its size."""
_STEP = 2**20


def unpacked_limit(packed_bytes: int, least_bytes: int | None = None) -> int:
    """Return the bytes to which so many packed ones may unpack."""
    return max(least_bytes or ARRAY_BYTES, MAX_EXPANSION * packed_bytes)


def is_small(packed_bytes: int) -> bool:
    """Return whether so many bytes of gzip or zlib can unpack to nothing that is refused."""
    return packed_bytes * MAX_DEFLATE <= ARRAY_BYTES


def check_unpacked(num_bytes: int, packed_bytes: int, what: str) -> None:
    """Raises: UserError that begins with `what`, when it unpacks to more than is plausible, or than
    fits into memory twice."""
    if num_bytes > unpacked_limit(packed_bytes):
        raise UserError(
            f"{what} unpacks from {packed_bytes / 1e6:,.1f} MB to {num_bytes / 1e6:,.0f} MB or "
            "more: refused\nif that is intended, write it again in smaller chunks"
        )
    if num_bytes > TEXT_BYTES:  # asking for the limit of memory costs as much as a small value
        check_fits(2 * num_bytes, what)


def check_zlib(content: bytes, what: str) -> None:
    """Compare the size to which a stream of zlib unpacks with what is plausible, before it is
    unpacked; no more than a megabyte is held.

    Raises: UserError as `check_unpacked`; when content is damaged.
    """
    size, rest, stream = 0, content, zlib.decompressobj()
    try:
        while rest and size <= unpacked_limit(len(content)):
            size += len(stream.decompress(rest, _STEP))
            rest = stream.unconsumed_tail
    except zlib.error as error:
        raise UserError(f"{what} is damaged: {error}") from error
    check_unpacked(size, len(content), what)
