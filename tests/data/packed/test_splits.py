"""A split that is gone, or that is of another pack, is damage."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.datasets.inventory import inventory
from phalanx.data.packed.index import INDEX
from phalanx.data.packed.index_file import find_splits, read_index
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.verify import damaged_samples, verify
from phalanx.data.sources.packed import describe
from phalanx.errors import UserError
from tests.data.packed.made import make


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    splits = {"train": 30, "validation": 8}
    make(tmp_path / "p" / "train", "png", splits=splits)
    make(tmp_path / "p" / "validation", "raw", num_samples=8, splits=splits)
    return tmp_path / "p"


def test_what_is_whole(pack: Path) -> None:
    found = find_splits(pack)
    assert {folder.name: index.num_samples for folder, index in found.indices.items()} == {
        "train": 30,
        "validation": 8,
    }
    assert found.faults == []
    assert list(find_splits(pack / "train").indices) == [pack / "train"]


def test_what_is_missing(pack: Path, tmp_path: Path) -> None:
    (pack / "train" / INDEX).unlink()
    (pack / "train" / INDEX).symlink_to("nowhere")
    num_shards = len(list((pack / "train").glob("shard-*.bin")))
    line = (
        f"{pack / 'train'} has {num_shards} shards and no index.json: it is damaged or incomplete"
    )
    assert find_splits(pack).faults == [line]
    assert find_splits(pack / "train").faults == [line]
    shutil.rmtree(pack / "train")
    assert find_splits(pack).faults == [
        f"{pack / 'train'} is missing: the pack has train, validation"
    ]
    make(pack / "train", "raw", num_samples=5)
    assert find_splits(pack).faults == [
        f"{pack / 'train'} has 5 samples, and 30 by {pack / 'validation' / INDEX}: it belongs to "
        "another pack"
    ]
    (pack / "train" / INDEX).write_bytes(b'{"schema": "\xff')
    assert f"{pack / 'train' / INDEX} is damaged" in find_splits(pack).faults[0]
    with pytest.raises(UserError, match="Expected `str` matching regex"):
        make(tmp_path / "q", "raw", splits={"../other": 3})
        read_index(tmp_path / "q")
    with pytest.raises(UserError, match="is not a pack"):
        find_splits(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is not a pack"):
        find_splits(tmp_path / "p" / INDEX)


def test_what_is_no_regular_file(pack: Path) -> None:
    """Whoever opens a FIFO waits, and /dev/zero never ends."""
    table, shard = pack / "train" / "shard-00001.npy", pack / "train" / "shard-00002.inputs.bin"
    table.unlink()
    os.mkfifo(table)
    shard.unlink()
    shard.symlink_to("/dev/zero")
    faults = {s.path: s.fault for s in verify(pack / "train", num_threads=2) if s.fault}
    assert faults == dict.fromkeys((table, shard), "cannot be read: Not a regular file")
    split = Pack(pack / "train", damaged="skip")
    first = split.first_samples.tolist()
    for sample in (first[1], first[2]):
        with pytest.raises(UserError, match="cannot be read: Not a regular file"):
            split.read("inputs", np.array([sample]))
    split.close()
    (pack / "validation" / INDEX).unlink()
    os.mkfifo(pack / "validation" / INDEX)
    with pytest.raises(UserError, match=r"index.json cannot be read: Not a regular file"):
        read_index(pack / "validation")


@pytest.mark.parametrize("num_bytes", [0, 100, -5])
def test_a_table_that_was_cut_off_is_a_damaged_file(num_bytes: int, tmp_path: Path) -> None:
    make(tmp_path / "p", "png")
    table = tmp_path / "p" / "shard-00001.npy"
    table.write_bytes(table.read_bytes()[:num_bytes])
    states = verify(tmp_path / "p", num_threads=1)
    assert [state.path for state in states if state.fault] == [table]
    assert damaged_samples(tmp_path / "p", states) == []


@pytest.fixture
def not_mine() -> Iterator[Path]:
    """A folder in which things may be made that this user must not read; root asks as nobody."""
    with tempfile.TemporaryDirectory() as name:
        folder, user = Path(name), os.geteuid()
        folder.chmod(0o777)
        try:
            if user == 0:
                os.seteuid(65534)
            yield folder
        finally:
            os.seteuid(user)
            for path in [folder, *folder.rglob("*")]:
                path.chmod(0o777)


def test_what_must_not_be_read(not_mine: Path) -> None:
    make(not_mine / "p" / "train", "raw")
    make(not_mine / "p" / "validation", "raw")
    (not_mine / "p" / "train").chmod(0)
    message = "cannot be read: Permission denied"
    assert message in find_splits(not_mine / "p").faults[0]
    with pytest.raises(UserError, match=message):
        describe(not_mine / "p")
    (not_mine / "p").chmod(0)
    with pytest.raises(UserError, match=message):
        find_splits(not_mine / "p")
    with pytest.raises(UserError, match=message):
        inventory(not_mine / "p")
    (not_mine / "p").chmod(0o700)
