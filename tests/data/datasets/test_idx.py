"""Any array comes back from its IDX file; any damage is a sentence with the numbers."""

import gzip
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from phalanx.data.datasets.idx import parse_idx, read_idx
from phalanx.errors import UserError

TYPES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def as_idx(array: np.ndarray[Any, Any]) -> bytes:
    element = TYPES[array.dtype.str[1:]]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, element, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@given(
    hnp.arrays(
        st.sampled_from(sorted(TYPES)).map(np.dtype),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
def test_every_element_type_comes_back(array: np.ndarray[Any, Any]) -> None:
    found = parse_idx(as_idx(array), "here")
    assert found.dtype == array.dtype
    assert found.dtype.isnative
    assert found.flags.writeable
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("zipped", [False, True])
def test_gzip_is_known_by_its_bytes_not_its_name(tmp_path: Path, zipped: bool) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    content = as_idx(array)
    path = tmp_path / ("plain-name" if zipped else "plain.gz")
    path.write_bytes(gzip.compress(content) if zipped else content)
    np.testing.assert_array_equal(read_idx(path, num_dims=3), array)


CONTENT = as_idx(np.zeros((3, 4), np.int32))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file: it begins with nothing"),
        (b"\x89PNG\r\n", "not an IDX file: it begins with 89 50 4e 47"),
        (b"\0\0\x07\x01\0\0\0\0", "not an IDX file: it begins with 00 00 07 01"),
        (CONTENT[:9], "truncated: a header of 2 dimensions needs 12 bytes, found 9"),
        (CONTENT[:-1], "truncated: 3 x 4 elements of 4 bytes need 60 bytes .*, found 59"),
        (CONTENT + b"!", "too long: 3 x 4 elements of 4 bytes need 60 bytes .*, found 61"),
        (
            struct.pack(">BBBB4I", 0, 0, 8, 4, *[2**32 - 1] * 4),
            f"need {(2**32 - 1) ** 4 + 20} bytes .*, found 20",
        ),
    ],
)
def test_damage_is_named_with_its_numbers(content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=f"^here .*{message}"):
        parse_idx(content, "here")


def test_another_number_of_dimensions_is_refused() -> None:
    with pytest.raises(UserError, match="here has 2 dimensions, expected 3"):
        parse_idx(CONTENT, "here", num_dims=3)


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file or directory"):
        read_idx(tmp_path / "none")


@pytest.mark.parametrize(
    ("count", "message"),
    [(100, "is too long: .*, found more"), (2**31, "is truncated: .*, found 52428816")],
)
def test_what_unzips_without_end_is_never_in_memory(
    count: int, message: str, tmp_path: Path
) -> None:
    header = struct.pack(">BBBB3I", 0, 0, 8, 3, count, 28, 28)
    (tmp_path / "bomb").write_bytes(gzip.compress(header + bytes(50 * 2**20), 1))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=message):
            read_idx(tmp_path / "bomb")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 10 * 2**20


def test_more_than_the_machine_holds_is_refused_unread(tmp_path: Path) -> None:
    """Its file is as long as its header says, and takes no room on the disk."""
    header = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**30, 28, 28)
    with (tmp_path / "huge").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + 2**30 * 28 * 28)
    with pytest.raises(UserError, match=r"GB of memory needed, but this machine has"):
        read_idx(tmp_path / "huge")
