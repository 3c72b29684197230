"""Content of `.npy` files, checked before it is believed; nothing is unpickled."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from phalanx.data.packing.table import reading
from phalanx.data.unpacked import check_unpacked

_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def parse_npy(content: bytes) -> NDArray[Any]:
    """Return the array, read-only, in the memory of `content`. Nothing is unpickled.

    Raises: ValueError, in words, when it is no array, holds objects, or its header names another
            size than follows.
    """
    file = io.BytesIO(content)
    try:
        version = npy.read_magic(file)
        if version not in _READERS:
            raise ValueError(f"version {version[0]}.{version[1]} is of no plain array")
        shape, is_fortran, dtype = _READERS[version](file)
    except (SyntaxError, TokenError, TypeError, KeyError, EOFError, RecursionError) as error:
        raise ValueError(f"its header cannot be read: {error}") from error
    if dtype.hasobject:
        raise ValueError("Object arrays are pickles, which can run any program")
    expected, found = math.prod(shape) * dtype.itemsize, len(content) - file.tell()
    if expected != found or dtype.itemsize == 0:
        raise ValueError(
            f"its header says {dtype} of {shape}, {expected:,} bytes, and {found:,} follow"
        )
    flat: NDArray[Any] = np.frombuffer(content, dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if is_fortran else "C")


def named_npy(content: bytes, where: str) -> NDArray[Any]:
    """Return the array. Raises: UserError that begins with `where`."""
    with reading(f"{where} is no array"):
        return parse_npy(content)


def parse_npz(content: bytes, where: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file `.npz` by name. Raises: UserError that begins with `where`."""
    with (
        reading(f"{where} is no .npz"),
        zipfile.ZipFile(io.BytesIO(content)) as archive,
    ):
        check_unpacked(sum(member.file_size for member in archive.infolist()), len(content), where)
        return {
            name.removesuffix(".npy"): named_npy(archive.read(name), f"{where}, {name}")
            for name in archive.namelist()
        }


def map_npy(path: Path) -> NDArray[Any]:
    """Return the array of a file, mapped into memory, read-only.

    Raises: UserError when it is damaged or holds objects.
    """
    with reading(f"{path} is no array"):
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
