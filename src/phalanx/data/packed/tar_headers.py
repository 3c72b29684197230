"""Headers of a tar's members, in the format USTAR.

Source: POSIX.1-2017, `pax`, section "ustar Interchange Format".
"""

from __future__ import annotations

from phalanx.errors import UserError

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
"""Of an archive."""

MAX_MEMBER_BYTES = 8**11 - 1
_MAX_NAME_BYTES = 100

# mode, owner and group; the time is 0, so that the same samples make the same bytes.
_BEFORE_SIZE = b"0000644\0" + 2 * b"0000000\0"
_TIME = b"00000000000\0"
_AFTER_CHECKSUM = (b"0" + bytes(100) + b"ustar\x0000").ljust(BLOCK_BYTES - 156, b"\0")
_SUM_OF_REST = sum(_BEFORE_SIZE + _TIME + _AFTER_CHECKSUM) + 8 * ord(" ")


def member_header(name: str, size_bytes: int) -> bytes:
    """(512,) of a regular file.

    Raises: UserError when it is larger than the format can say, 8 GiB.
    """
    if size_bytes > MAX_MEMBER_BYTES:
        raise UserError(f"{name} has {size_bytes} bytes; a tar holds members below 8 GiB")
    encoded, size = name.encode(), b"%011o\0" % size_bytes
    assert len(encoded) <= _MAX_NAME_BYTES, "names are ours, and short"
    checksum = b"%06o\0 " % (_SUM_OF_REST + sum(encoded) + sum(size))
    return encoded.ljust(100, b"\0") + _BEFORE_SIZE + size + _TIME + checksum + _AFTER_CHECKSUM


def padded(size_bytes: int) -> int:
    """Bytes that a member takes: whole blocks."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
