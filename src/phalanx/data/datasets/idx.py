"""Reads IDX, the format of MNIST: two zero bytes, type, number of dimensions, sizes, elements.

Source: LeCun, Cortes & Burges, "The MNIST database of handwritten digits", file format section.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.gzip_file import read_unzipped, unzipped_size
from phalanx.errors import UserError
from phalanx.jobs.cores import check_fits

# Type byte of the header → element, most significant byte first.
_ELEMENTS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path, *, num_dims: int | None = None) -> NDArray[Any]:
    """The array in an IDX file, gzipped or not (its first bytes tell, not its name).

    num_dims: refuse a file with another number of dimensions.
    Raises: UserError when the file cannot be read, is damaged, truncated or too long.
    """
    element, shape = _parse_header(read_unzipped(path, limit_bytes=4 + 4 * 255), str(path))
    expected_bytes = 4 + 4 * len(shape) + math.prod(shape) * element.itemsize
    found_bytes = unzipped_size(path, expected_bytes)
    if found_bytes == expected_bytes:  # else there is no need of memory for it
        check_fits(3 * expected_bytes, f"{path} has {' x '.join(map(str, shape))} elements")
        content = read_unzipped(path, limit_bytes=expected_bytes + 1)
        return parse_idx(content, str(path), num_dims=num_dims)
    found = "more" if found_bytes > expected_bytes else str(found_bytes)
    raise UserError(_misfit(expected_bytes, found, element, shape, str(path)))


def parse_idx(content: bytes, source: str, *, num_dims: int | None = None) -> NDArray[Any]:
    """The array in `content`, writable and in the machine's byte order; `source` names it."""
    element, shape = _parse_header(content, source)
    if num_dims is not None and len(shape) != num_dims:
        raise UserError(f"{source} has {len(shape)} dimensions, expected {num_dims}")
    header_bytes = 4 + 4 * len(shape)
    expected_bytes = header_bytes + math.prod(shape) * element.itemsize
    if len(content) != expected_bytes:
        raise UserError(_misfit(expected_bytes, str(len(content)), element, shape, source))
    array = np.frombuffer(content, element, offset=header_bytes).reshape(shape)
    return array.astype(element.newbyteorder("="))


def _misfit(
    expected: int, found: str, element: np.dtype[Any], shape: tuple[int, ...], source: str
) -> str:
    fault = "is too long" if found == "more" or int(found) > expected else "is truncated"
    sizes = " x ".join(map(str, shape))
    return (
        f"{source} {fault}: {sizes} elements of {element.itemsize} bytes need "
        f"{expected} bytes with the header, found {found}"
    )


def _parse_header(content: bytes, source: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _ELEMENTS:
        raise UserError(
            f"{source} is not an IDX file: it begins with {content[:4].hex(' ') or 'nothing'}, "
            "expected 00 00, an element type and a number of dimensions"
        )
    num_dims = content[3]
    if len(content) < 4 + 4 * num_dims:
        raise UserError(
            f"{source} is truncated: a header of {num_dims} dimensions needs "
            f"{4 + 4 * num_dims} bytes, found {len(content)}"
        )
    return np.dtype(_ELEMENTS[content[2]]), struct.unpack_from(f">{num_dims}I", content, 4)
