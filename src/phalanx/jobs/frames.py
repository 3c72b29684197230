"""Files in a stream of text: fixed-size lines that survive whatever stands between them.

A launcher forwards the output of all ranks in chunks, mixed with its own. Every frame is a line of
`FRAME_BYTES`, which divides the size of a pipe's atomic writes and of the launchers' buffers, so
frames are not cut where output of several ranks meets. A frame has a digest by the key of the job:
without it, it is damaged, or a program has printed it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterator
from typing import NamedTuple

FRAME_BYTES = 512
_MARK = b"\x1ephalanx "
MAX_NAME = 96
"""Longest name in bytes of ASCII."""
_MAX_NUMBERS = 64  # characters of the other fields
MAX_DATA = (FRAME_BYTES - len(_MARK) - MAX_NAME - _MAX_NUMBERS) // 4 * 3
"""Bytes of a file in one frame."""


class Frame(NamedTuple):
    """A chunk of a file of one rank."""

    rank: int
    name: str
    """Relative path, of ASCII characters without spaces."""
    version: int
    """Counts how often the file was replaced."""
    offset: int
    data: bytes
    is_last: bool
    """The file ends here, for now."""


def encode(frame: Frame, key: bytes) -> bytes:
    """Return the line of a frame. Raises: ValueError for a name or data that do not fit."""
    if " " in frame.name or len(frame.name) > MAX_NAME or len(frame.data) > MAX_DATA:
        raise ValueError(f"no frame: {frame.name!r}, {len(frame.data)} bytes")
    numbers = f"{frame.rank} {frame.version} {frame.offset} {int(frame.is_last)} "
    data = base64.b64encode(frame.data)
    content = numbers.encode() + data + b" " + frame.name.encode("ascii")
    line = _MARK + _digest(content, key) + b" " + content
    return line.ljust(FRAME_BYTES - 1) + b"\n"


def frames_of(
    key: bytes,
    rank: int,
    name: str,
    version: int,
    offset: int,
    data: bytes,
    *,
    is_last: bool = True,
) -> Iterator[bytes]:
    """Yield the lines that carry `data`; one line for no data. is_last: it ends the file, for
    now."""
    for start in range(0, max(1, len(data)), MAX_DATA):
        chunk = data[start : start + MAX_DATA]
        ends = is_last and start + MAX_DATA >= len(data)
        yield encode(Frame(rank, name, version, offset + start, chunk, ends), key)


_WINDOW_BITS = 12  # 4 KB: lines of records resemble each other, and a thousand ranks have some


class Packer:
    """Compresses a file as it grows; each piece can be read as soon as it arrives."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(wbits=_WINDOW_BITS, memLevel=6)
        self.num_bytes = 0
        """Bytes that the pieces so far have together."""

    def pack(self, data: bytes) -> bytes:
        """Return the next piece of the file, compressed."""
        packed = self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        self.num_bytes += len(packed)
        return packed


def unpacker() -> zlib._Decompress:
    """Return the counterpart of a `Packer`."""
    return zlib.decompressobj(wbits=_WINDOW_BITS)


class Decoder:
    """Takes a stream apart into frames and the ordinary output around them."""

    def __init__(self, key: bytes) -> None:
        self._key, self._waiting = key, b""

    def feed(self, new: bytes) -> list[Frame | bytes]:
        """Return what is complete: frames, and ordinary output as it came."""
        text, at = self._waiting + new, 0
        found: list[Frame | bytes] = []
        while at < len(text):
            start = _find_mark(text, at)
            if start > at:
                found.append(text[at:start])
                at = start
            elif len(text) - at < FRAME_BYTES and _MARK.startswith(text[at : at + len(_MARK)]):
                break
            else:
                frame = _decode(text[at : at + FRAME_BYTES], self._key)
                found.append(frame or text[at : at + 1])
                at += FRAME_BYTES if frame else 1
        self._waiting = text[at:]
        return found

    def close(self) -> bytes:
        """Return what is left at the end of the stream: no frame is."""
        left, self._waiting = self._waiting, b""
        return left


def _find_mark(text: bytes, at: int) -> int:
    """Return where the first mark from `at` on may begin, else the length of `text`."""
    start = text.find(_MARK, at)
    if start >= 0:
        return start
    for size in range(min(len(_MARK) - 1, len(text) - at), 0, -1):
        if text.endswith(_MARK[:size]):
            return len(text) - size
    return len(text)


def _digest(content: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8, key=key).hexdigest().encode()


def _decode(line: bytes, key: bytes) -> Frame | None:
    """Return the frame of a line; None where it is none, or damaged."""
    if len(line) < FRAME_BYTES or not line.startswith(_MARK) or not line.endswith(b"\n"):
        return None
    digest, _, content = line[len(_MARK) :].rstrip(b" \n").partition(b" ")
    try:
        if digest != _digest(content, key):
            return None
        rank, version, offset, is_last, data, name = content.split(b" ")
        return Frame(
            rank=int(rank),
            name=name.decode("ascii"),
            version=int(version),
            offset=int(offset),
            data=base64.b64decode(data, validate=True),
            is_last=is_last == b"1",
        )
    except (ValueError, binascii.Error):
        return None
