"""Many threads, many shards, few descriptors."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packed import part_reader
from phalanx.data.packed.index import Field, File, PackIndex, Shard
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.part_reader import OpenFile, OpenFiles, mapped_files
from phalanx.data.packed.writer import PackWriter
from tests.data.packed.made import flip, folder, make, rows

FIELD = Field(name="inputs", dtype="int32", shape=[2])


def test_threads_read_at_once_from_more_shards_than_may_be_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_reader, "SAMPLES_AT_ONCE", 8)
    monkeypatch.setattr(part_reader, "OPEN_FILES", 5)
    content = rows([FIELD], 60)
    with folder() as path:
        with PackWriter(path / "p", fields=[FIELD], shard_bytes=16) as writer:
            writer.add_rows(content)
        pack = Pack(path / "p")
        assert len(pack.shards) == 30
        before = len(os.listdir("/proc/self/fd"))

        def read(seed: int) -> bool:
            order = np.random.default_rng(seed).permutation(60)
            return bool((pack.read("inputs", order) == content["inputs"][order]).all())

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(read, range(100)))
        assert len(os.listdir("/proc/self/fd")) - before <= 10
        pack.close()
        assert len(os.listdir("/proc/self/fd")) == before
        other = pickle.loads(pickle.dumps(pack))
        np.testing.assert_array_equal(other.read("inputs", np.arange(60)), content["inputs"])
        other.close()


def test_a_file_in_use_is_not_closed(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"0-{number}").write_text("abc"[number])
    files = OpenFiles(
        lambda shard, number: tmp_path / f"{shard}-{number}", frozenset({(0, 1)}), limit=1
    )

    def read(file: OpenFile) -> bytes:
        return os.pread(file.numbers[0], 1, 0)

    (first,) = files.get([(0, 0)])
    others = files.get([(0, 1), (0, 2)])
    assert [read(file) for file in (first, *others)] == [b"a", b"b", b"c"]
    files.close()
    (tmp_path / "0-0").unlink()
    assert read(first) == b"a"
    descriptor = first.numbers[0]
    del first
    with pytest.raises(OSError, match="Bad file"):
        os.pread(descriptor, 1, 0)
    with pytest.raises(FileNotFoundError):
        files.get([(0, 1), (0, 0)])
    files.close()


@pytest.mark.parametrize("mapped_bytes", [0, 2**20])
@pytest.mark.parametrize("kernels", ["", "arrays"])
def test_every_way_of_reading(
    mapped_bytes: int, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From maps and by calls of the system, in C and in Python: the same."""
    monkeypatch.setattr(part_reader, "MAPPED_BYTES", mapped_bytes)
    if kernels == "arrays":
        monkeypatch.setattr("phalanx.data.packed.checked_reads.compiled", lambda: None)
    for kind in ("png", "raw"):
        with folder() as path:
            content = make(path / "p", kind)  # type: ignore[arg-type]
            sample = 7
            pack = Pack(path / "p", damaged="skip")
            order = np.random.default_rng(1).permutation(30)
            for name, expected in content.items():
                np.testing.assert_array_equal(pack.read(name, order), expected[order])
            asked = pack._reader.locate(0, np.array([sample]))
            file = path / "p" / pack.shards[int(asked.shards[0])].files[1].name
            flip(file, int(asked.offsets[0]))
            pack.read("inputs", order)
            assert [error.sample for error in pack.damages] == [sample]
            pack.close()


def test_the_smallest_files_are_mapped() -> None:
    def shard(*sizes: int) -> Shard:
        return Shard(num_samples=1, files=[File(name="", bytes=b, sha256="") for b in sizes])

    shards = [shard(5, 900, 10), shard(5, 300, 20)]
    index = PackIndex(fields=[], shards=shards, num_samples=2)
    assert mapped_files(index, 29) == {(0, 2)}
    assert mapped_files(index, 30) == {(0, 2), (1, 2)}
    assert mapped_files(index, 1230) == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert mapped_files(index, 0) == frozenset()
