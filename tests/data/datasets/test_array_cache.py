"""A cached array is believed only when it is what was stored; many may ask for it at once."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.datasets.array_cache import Arrays, cached, checksum_file, read

ARRAYS = Arrays(*(np.arange(number, dtype=np.uint8) for number in (100, 200, 3, 4)))


def must_not_be_made() -> Arrays:
    pytest.fail("the array was made although it is in the cache")


def make() -> Arrays:
    return ARRAYS


def check(found: Arrays) -> None:
    for one, other in zip(found, ARRAYS, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "array.npz"


def test_an_array_is_made_once(path: Path) -> None:
    assert read(path) is None
    check(cached(path, make))
    check(cached(path, must_not_be_made))


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "no checksum", "other checksum"])
def test_a_damaged_array_is_made_again(path: Path, damage: str) -> None:
    cached(path, make)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[:-1])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "no checksum":
        checksum_file(path).unlink()
    else:
        checksum_file(path).write_bytes(b"\xff\xfe")
    assert read(path) is None
    check(cached(path, make))
    check(cached(path, must_not_be_made))


def test_a_folder_that_cannot_be_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where the folder should be")
    check(cached(tmp_path / "file" / "array.npz", make))


def test_a_full_disk_is_done_without(path: Path) -> None:
    path.parent.mkdir()
    path.mkdir()  # a rename onto a folder fails as late as a full disk does
    check(cached(path, make))
    assert [p.name for p in path.parent.iterdir() if p.name.endswith(str(os.getpid()))] == []


def test_of_many_processes_one_makes_it(path: Path, tmp_path: Path) -> None:
    program = """
import os, sys, time, pathlib, numpy
from phalanx.data.datasets.array_cache import Arrays, cached
def make():
    pathlib.Path(sys.argv[2], f"made-by-{os.getpid()}").touch()
    time.sleep(0.2)
    return Arrays(*[numpy.full((3, 4), 7, numpy.uint8)] * 4)
assert cached(pathlib.Path(sys.argv[1]), make)[2].tolist() == [[7] * 4] * 3
"""
    words = [sys.executable, "-c", program, str(path), str(tmp_path)]
    processes = [subprocess.Popen(words) for _ in range(4)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 4
    assert len(list(tmp_path.glob("made-by-*"))) == 1
