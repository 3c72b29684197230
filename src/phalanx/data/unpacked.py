"""Bounds for compressed content: a small file that unpacks without end must not fill the memory."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from phalanx.errors import UserError
from phalanx.launch.cores import check_fits

MAX_EXPANSION = 100
"""Records and arrays unpack to ten or twenty times their size."""
TEXT_BYTES, ARRAY_BYTES = 64 * 2**20, 512 * 2**20
"""Always allowed: of text, which takes many times as much when it is parsed; of arrays, of which
those of one value take next to nothing on disk."""
MAX_DEFLATE = 1032
"""No content of gzip or zlib unpacks to more than this many times its size."""
_BLOCK_BYTES = 128 * 2**10
"""Of zstd, at most."""
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
            f"more: refused\nwrite it again in smaller chunks, if that is meant"
        )
    if num_bytes > TEXT_BYTES:  # asking for the limit of memory costs as much as a small value
        check_fits(2 * num_bytes, what)


def check_packed(codec: str, content: Any, what: str) -> None:
    """Compare the size to which `content` unpacks with what is plausible, before it is unpacked.

    codec: gzip, zlib, bz2, lzma, zstd, blosc or lz4. content: bytes, or a view of them.
    Raises: UserError as `check_unpacked`; when the codec is another; when content is damaged.
    """
    view = memoryview(content).cast("B")
    limit = unpacked_limit(len(view))
    try:
        if codec in _STREAMS:
            is_harmless = codec in ("gzip", "zlib") and is_small(len(view))
            size = 0 if is_harmless else _streamed(codec, view, limit)
        elif codec in _HEADERS:
            size = _HEADERS[codec](view)
        else:
            raise UserError(f"{what} is packed by {codec}, whose sizes cannot be bounded: refused")
    except (zlib.error, lzma.LZMAError, OSError, EOFError, IndexError, ValueError) as error:
        raise UserError(f"{what} is damaged: {error}") from error
    check_unpacked(size, len(view), what)


_STREAMS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(47),
    "zlib": lambda: zlib.decompressobj(47),
    "bz2": bz2.BZ2Decompressor,
    "lzma": lzma.LZMADecompressor,
}


def _streamed(codec: str, content: memoryview, limit: int) -> int:
    """Return the unpacked size, or one above `limit`; no more than a megabyte is held."""
    size, rest = 0, content
    while len(rest) and size <= limit:
        stream: Any = _STREAMS[codec]()
        given: Any = rest
        try:
            while (piece := stream.decompress(given, _STEP)) or len(given):
                size += len(piece)
                if stream.eof or size > limit:
                    break
                given = getattr(stream, "unconsumed_tail", b"")
        except (zlib.error, lzma.LZMAError, OSError):
            if not size:
                raise
            return size  # a checksum or padding behind the stream
        rest = memoryview(stream.unused_data) if stream.eof and codec != "zlib" else memoryview(b"")
    return size


def _zstd_size(content: memoryview) -> int:
    """Return the size that the header of the frame says, else the bound that its blocks give.

    Source: RFC 8878, "Zstandard Compression", section 3.1.1.
    """
    if bytes(content[:4]) != b"\x28\xb5\x2f\xfd":
        raise ValueError("it is no frame of zstd")
    descriptor = content[4]
    is_single = descriptor >> 5 & 1
    offset = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    width = (is_single, 2, 4, 8)[descriptor >> 6]
    if width:
        size = int.from_bytes(content[offset : offset + width], "little")
        return size + 256 * (width == 2)
    size, is_last = 0, False
    while not is_last:
        header = int.from_bytes(content[offset : offset + 3], "little")
        is_last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
        size += _BLOCK_BYTES if kind == 2 else length
        offset += 3 + (1 if kind == 1 else length)
        if offset > len(content):
            raise ValueError("it is cut off")
    rest = content[offset + 4 * (descriptor >> 2 & 1) :]
    return size + (_zstd_size(rest) if len(rest) else 0)


_HEADERS: dict[str, Callable[[memoryview], int]] = {
    "zstd": _zstd_size,
    "blosc": lambda content: int.from_bytes(content[4:8], "little"),
    "lz4": lambda content: int.from_bytes(content[:4], "little"),
}
