"""The fast path returns the same samples as the slow path, and detects the same damage."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packed.checked_reads import compiled
from phalanx.data.packed.index import Field
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.part_reader import DamagedError
from phalanx.data.packed.writer import PackWriter
from tests.data.packed.made import flip, rows

pytestmark = pytest.mark.skipif(compiled() is None, reason="the module in C was not built")
FIELDS = [
    Field(name="inputs", dtype="int32", shape=[3, 5]),
    Field(name="targets", dtype="int64", shape=[]),
]
NUM = 40
ALL = np.arange(NUM)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    with PackWriter(tmp_path / "p", fields=FIELDS, shard_bytes=700) as writer:
        writer.add_rows(rows(FIELDS, NUM))
    return tmp_path / "p"


def open_below(folder: Path) -> list[Path]:
    """Files of this process."""
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    files = [link.readlink() for link in links if os.path.lexists(link)]
    return [file for file in files if file.is_relative_to(folder)]


@pytest.fixture
def pack(packed: Path) -> Iterator[Pack]:
    pack = Pack(packed)
    assert len(pack.shards) > 3
    yield pack
    pack.close()


def test_nothing_is_looked_up_once_files_are_open(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rows(FIELDS, NUM)
    order = np.random.default_rng(0).permutation(NUM)
    for name in expected:
        np.testing.assert_array_equal(pack.read(name, order), expected[name][order])
    monkeypatch.setattr(pack._reader, "locate", None)
    for name in expected:
        np.testing.assert_array_equal(pack.read(name, order[::-2]), expected[name][order[::-2]])
        assert pack.read(name, ALL[:0]).shape == (0, *expected[name].shape[1:])


def test_what_is_wrong_is_named_as_before(pack: Pack) -> None:
    pack.read("inputs", ALL)
    for wrong in (-1, NUM):
        with pytest.raises(IndexError, match=f"no sample {wrong}"):
            pack.read("inputs", np.array([0, wrong]))
    located = pack._reader.locate(0, np.array([7]))
    file = pack.folder / pack.shards[int(located.shards[0])].files[located.file].name
    flip(file, int(located.offsets[0]) + 9)
    with pytest.raises(DamagedError) as caught:
        pack.read("inputs", ALL)
    assert (caught.value.sample, caught.value.file) == (7, file)


def test_a_shard_that_moved_is_opened_anew_and_the_old_file_let_go(
    pack: Pack, tmp_path: Path
) -> None:
    """A staged shard whose file stayed open would take its place on the disk until the end."""
    other = tmp_path / "other"
    other.mkdir()
    for file in pack.shards[1].files:
        shutil.copy(pack.folder / file.name, other)
    before = pack.read("inputs", ALL)
    pack.read_from(other)
    assert (pack.read("inputs", ALL) == before).all()
    of_shard = {file.name for file in pack.shards[1].files}
    assert {file.parent for file in open_below(tmp_path) if file.name in of_shard} == {other}


def test_shards_move_while_many_read(pack: Pack, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(pack.folder, other)
    expected = rows(FIELDS, NUM)["inputs"]

    def read(seed: int) -> bool:
        if seed % 5 == 0:
            pack.read_from(other if seed % 2 else None)
        order = np.random.default_rng(seed).permutation(NUM)[:9]
        return bool((pack.read("inputs", order) == expected[order]).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(400)))
    assert open_below(tmp_path)
    pack.close()
    assert not open_below(tmp_path)


def test_what_does_not_fit_is_refused() -> None:
    module = compiled()
    assert module is not None
    first, files = np.array([0, 2]), np.full((1, 3), -1)
    headers, entries = np.zeros(1, np.int64), np.zeros((2, 1), np.uint32)
    samples, out = np.array([0, 1]), np.zeros(20, np.uint8)
    fits = (first, files, headers, entries, 4, 0, 10, samples, out)
    assert module.read_samples(*fits) is False, "no file is open"
    for place, other in [
        (0, first[:1]),
        (0, np.array([0, 3])),
        (0, np.array([0, -1])),
        (1, files[:, :2].copy()),
        (2, np.zeros(2, np.int64)),
        (2, headers[:0]),
        (3, entries[:1]),
        (4, 2),
        (5, 1),
        (5, -1),
        (6, 11),
        (6, 0),
        (6, -10),
        (7, samples[:1]),
        (8, out[:19]),
    ]:
        with pytest.raises(ValueError, match="do not fit"):
            module.read_samples(*fits[:place], other, *fits[place + 1 :])
