"""Sizes and contents of files, zipped or not, whole or cut short."""

import gzip
from pathlib import Path

import pytest

from phalanx.data.gzip_file import read_unzipped, unzipped_size
from phalanx.errors import UserError

CONTENT = bytes(range(256)) * 40


@pytest.fixture(params=[False, True], ids=["plain", "gz"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(CONTENT) if request.param else CONTENT)
    return path


def test_content_comes_back_whole_or_up_to_the_limit(file: Path) -> None:
    assert read_unzipped(file) == CONTENT
    assert read_unzipped(file, limit_bytes=100) == CONTENT[:100]


@pytest.mark.parametrize("difference", [-3, -1, 0, 1, 3])
def test_size_is_told_up_to_one_byte_too_many(file: Path, difference: int) -> None:
    expected = len(CONTENT) + difference
    assert unzipped_size(file, expected) == min(len(CONTENT), expected + 1)


def test_members_that_follow_one_another_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "two"
    path.write_bytes(gzip.compress(CONTENT[:1000]) + gzip.compress(CONTENT[1000:]))
    assert unzipped_size(path, len(CONTENT)) == len(CONTENT)
    assert read_unzipped(path) == CONTENT


@pytest.mark.parametrize("kept_bytes", [3, 12, 30, -9, -1])
def test_a_zip_cut_short_is_damaged(tmp_path: Path, kept_bytes: int) -> None:
    path = tmp_path / "cut"
    path.write_bytes(gzip.compress(CONTENT)[:kept_bytes])
    for read in (read_unzipped, lambda path: unzipped_size(path, len(CONTENT))):
        with pytest.raises(UserError, match="cut is truncated or damaged"):
            read(path)


def test_a_flipped_bit_is_damage(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(CONTENT))
    content[-6] ^= 1  # in the CRC
    path = tmp_path / "flipped"
    path.write_bytes(content)
    with pytest.raises(UserError, match="flipped is truncated or damaged: CRC check failed"):
        read_unzipped(path)


def test_a_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_unzipped(tmp_path)
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        unzipped_size(tmp_path, 1)
