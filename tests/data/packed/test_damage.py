"""Altered or truncated samples are reported when read, and never returned as data."""

import pickle
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.packed.index import INDEX
from phalanx.data.packed.index_file import read_index
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.part_reader import DamagedError
from phalanx.data.packed.verify import damaged_samples, verify
from phalanx.errors import UserError
from tests.data.packed.made import IMAGES, Kind, flip, folder, make

kinds = pytest.mark.parametrize("kind", ["png", "raw"])
ALL = np.arange(30)


def data_file(path: Path, kind: Kind, shard: int = 1) -> Path:
    return path / (f"shard-{shard:05d}." + ("inputs.bin" if kind == "png" else "inputs.npy"))


def offset_of(path: Path, kind: Kind, sample: int) -> int:
    """Where the inputs of a sample begin in its shard."""
    pack = Pack(path)
    asked = pack._reader.locate(0, np.array([sample]))
    pack.close()
    return int(asked.offsets[0])


@kinds
def test_an_altered_sample_stops_the_run(kind: Kind, tmp_path: Path) -> None:
    make(tmp_path / "p", kind)
    first = int(Pack(tmp_path / "p").first_samples[1])
    offset = offset_of(tmp_path / "p", kind, first + 2)
    flip(data_file(tmp_path / "p", kind), offset + 3)
    pack = Pack(tmp_path / "p")
    pack.read("inputs", np.delete(ALL, first + 2))
    with pytest.raises(DamagedError) as caught:
        pack.read("inputs", ALL)
    error = caught.value
    assert (error.sample, error.offset_bytes) == (first + 2, offset)
    assert error.file == data_file(tmp_path / "p", kind)
    assert f"sample {first + 2} at byte {offset} is not what was packed" in str(error)
    assert "--damaged skip" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.sample) == (str(error), error.sample)
    pack.close()


@kinds
def test_an_altered_sample_is_skipped_and_counted(kind: Kind, tmp_path: Path) -> None:
    content = make(tmp_path / "p", kind)
    sample = int(Pack(tmp_path / "p").first_samples[1]) + 2
    flip(data_file(tmp_path / "p", kind), offset_of(tmp_path / "p", kind, sample))
    pack = Pack(tmp_path / "p", damaged="skip")
    order = np.random.default_rng(0).permutation(ALL)
    got = pack.read("inputs", order)
    is_lost = order == sample
    assert not got[is_lost].any()
    np.testing.assert_array_equal(got[~is_lost], content["inputs"][order[~is_lost]])
    np.testing.assert_array_equal(pack.damaged_of(order), is_lost)
    np.testing.assert_array_equal(pack.read("targets", order), content["targets"][order])
    assert pack.read_bytes("inputs", order)[int(np.flatnonzero(is_lost)[0])] == b""
    assert len(pack.damages) == 1
    assert [error.sample for error in pack.damages] == [sample]
    pack.close()


@kinds
def test_a_truncated_shard(kind: Kind, tmp_path: Path) -> None:
    content = make(tmp_path / "p", kind)
    first, end = Pack(tmp_path / "p").first_samples[1:3].tolist()
    offset = offset_of(tmp_path / "p", kind, first + 1)
    file = data_file(tmp_path / "p", kind)
    file.write_bytes(file.read_bytes()[: offset + 5])
    with pytest.raises(DamagedError, match="beyond its end") as caught:
        Pack(tmp_path / "p")
    assert (caught.value.sample, caught.value.offset_bytes) == (first + 1, offset)
    pack = Pack(tmp_path / "p", damaged="skip")
    got = pack.read("inputs", ALL)
    is_lost = (first + 1 <= ALL) & (end > ALL)
    np.testing.assert_array_equal(pack.damaged_of(ALL), is_lost)
    np.testing.assert_array_equal(got[~is_lost], content["inputs"][~is_lost])
    assert not got[is_lost].any()
    pack.close()


@kinds
def test_cut_off_while_it_is_read(kind: Kind, tmp_path: Path) -> None:
    make(tmp_path / "p", kind)
    pack = Pack(tmp_path / "p")
    pack.read("inputs", ALL)
    file = data_file(tmp_path / "p", kind)
    file.write_bytes(b"")
    with pytest.raises(DamagedError, match="beyond the file's end"):
        pack.read("inputs", ALL)
    pack.close()


@kinds
def test_missing_and_lengthened_files(kind: Kind, tmp_path: Path) -> None:
    make(tmp_path / "p", kind)
    file = data_file(tmp_path / "p", kind)
    content = file.read_bytes()
    file.write_bytes(content + b"\0")
    with pytest.raises(UserError, match=f"{len(content) + 1} bytes, not {len(content)}"):
        Pack(tmp_path / "p")
    file.unlink()
    for damaged in ("stop", "skip"):
        with pytest.raises(UserError, match="cannot be read: No such file"):
            Pack(tmp_path / "p", damaged=damaged)


@kinds
def test_an_altered_table_of_checksums(kind: Kind, tmp_path: Path) -> None:
    content = make(tmp_path / "p", kind)
    flip(tmp_path / "p" / "shard-00001.npy", -1)
    for damaged in ("stop", "skip"):
        pack = Pack(tmp_path / "p", damaged=damaged)
        with pytest.raises(UserError, match=r"shard-00001.npy, the checksums of \d+ samples"):
            pack.read("targets", ALL)
        first = int(pack.first_samples[1])
        whole = pack.read("inputs", ALL[:first])
        np.testing.assert_array_equal(whole, content["inputs"][:first])
        pack.close()
    assert damaged_samples(tmp_path / "p", verify(tmp_path / "p", num_threads=1)) == []


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["png", "raw"]), st.data())
def test_no_altered_byte_is_data(kind: Kind, data: st.DataObject) -> None:
    """Whatever bit of whatever file is turned over: samples come back as they were packed, or are
    counted, or there is an error."""
    with folder() as path:
        content = make(path / "p", kind, num_samples=8, shard_bytes=100)
        file = data.draw(st.sampled_from(sorted((path / "p").iterdir())))
        flip(file, data.draw(st.integers(0, file.stat().st_size - 1)))
        for damaged in ("stop", "skip"):
            try:
                pack = Pack(path / "p", damaged=damaged)
            except UserError:
                continue
            for name, expected in content.items():
                try:
                    got = pack.read(name, np.arange(8))
                except UserError:
                    assert damaged == "stop" or file.name.count(".") == 1, "a table of checksums"
                    continue
                is_whole = ~pack.damaged_of(np.arange(8))
                np.testing.assert_array_equal(got[is_whole], expected[is_whole])
            pack.close()


@kinds
def test_verify_names_files_and_samples(kind: Kind, tmp_path: Path) -> None:
    make(tmp_path / "p", kind)
    read: list[int] = []
    assert not any(s.fault for s in verify(tmp_path / "p", num_threads=3, on_read=read.append))
    assert sum(read) == sum(f.bytes for s in read_index(tmp_path / "p").shards for f in s.files)
    first = int(Pack(tmp_path / "p").first_samples[1])
    offset = offset_of(tmp_path / "p", kind, first + 2)
    file = data_file(tmp_path / "p", kind)
    flip(file, offset)
    expected = {file: "is not what was written"}
    if kind == "raw":  # a header, where no sample lies
        flip(data_file(tmp_path / "p", kind, shard=0), 20)
        expected[data_file(tmp_path / "p", kind, shard=0)] = "is not what was written"
    faults = {s.path: s.fault for s in verify(tmp_path / "p", num_threads=2) if s.fault}
    assert faults == expected
    states = verify(tmp_path / "p", num_threads=1)
    lost = damaged_samples(tmp_path / "p", states)
    assert [(error.sample, error.offset_bytes) for error in lost] == [(first + 2, offset)]
    file.unlink()
    states = verify(tmp_path / "p", num_threads=1)
    assert [s.fault for s in states if s.path == file] == ["is missing"]
    assert damaged_samples(tmp_path / "p", states) == []


INDEX_FAULTS = {
    "has schema 99, but this Phalanx reads 2: update it": {"schema": 99},
    "has schema 1, but this Phalanx reads 2: pack the data again": {"schema": 1},
    "Object missing required field": {"fields": None},
    "its shards have 30 samples together, not 31": {"num_samples": 31},
    "Expected `int`": {"num_samples": "many"},
    "letters, digits": {"fields": [{"name": "../x", "dtype": "uint8", "shape": []}]},
    "is not one of numbers": {"fields": [{"name": "x", "dtype": "object", "shape": []}]},
    "is not the shape of a sample": {
        "fields": [{"name": "x", "dtype": "uint8", "shape": [2**40, 2**40]}]
    },
    "has the files": {"fields": [{"name": "x", "dtype": "uint8", "shape": []}]},
    "Invalid enum value": {
        "fields": [{"name": "x", "dtype": "uint8", "shape": [], "encoding": "z"}]
    },
    "was altered since it was written": {"classes": ["dog", "cat"]},
}


@pytest.mark.parametrize("message", INDEX_FAULTS)
def test_an_index_that_cannot_be(message: str, tmp_path: Path) -> None:
    make(tmp_path / "p", "raw")
    path = tmp_path / "p" / INDEX
    change = INDEX_FAULTS[message]
    content = msgspec.json.decode(path.read_bytes()) | change
    content = {key: value for key, value in content.items() if value is not None}
    path.write_bytes(msgspec.json.encode(content))
    with pytest.raises(UserError, match=message) as caught:
        Pack(tmp_path / "p")
    assert str(path) in str(caught.value)


def test_sizes_that_do_not_fit_the_shape(tmp_path: Path) -> None:
    make(tmp_path / "p", "raw")
    path = tmp_path / "p" / INDEX
    content = msgspec.json.decode(path.read_bytes())
    content["fields"][0]["shape"] = [1, 4, 1000]
    path.write_bytes(msgspec.json.encode(content))
    with pytest.raises(UserError, match=r"shard-00000.inputs.npy should have \d+ bytes"):
        Pack(tmp_path / "p")


def test_folders_that_are_no_packs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a pack: it has no index\.json"):
        Pack(tmp_path / "nowhere")
    make(tmp_path / "flowers" / "train", "raw")
    with pytest.raises(UserError, match=r"use one of its splits, .*flowers/train"):
        Pack(tmp_path / "flowers")


def test_what_is_asked_wrongly(tmp_path: Path) -> None:
    make(tmp_path / "p", "raw")
    pack = Pack(tmp_path / "p")
    with pytest.raises(IndexError, match="there is no sample 30"):
        pack.read("inputs", np.array([3, 30]))
    with pytest.raises(IndexError, match="there is no sample -1"):
        pack.read("inputs", np.array([-1]))
    with pytest.raises(ValueError, match="out must be contiguous"):
        pack.read("inputs", np.array([1, 2]), np.empty((2, 1, 4, 5), np.uint8))
    assert pack.read("inputs", np.array([], int)).shape == (0, 1, 4, 4)
    out = np.empty((2, 1, 4, 4), np.uint8)
    assert pack.read("inputs", np.array([1, 2]), out) is out
    pack.close()


@kinds
def test_a_shard_that_is_read_from_elsewhere(kind: Kind, tmp_path: Path) -> None:
    content = make(tmp_path / "p", kind)
    pack = Pack(tmp_path / "p")
    pack.read("inputs", ALL)
    shutil.copytree(tmp_path / "p", tmp_path / "staged")
    pack.read_from(tmp_path / "staged")
    data_file(tmp_path / "p", kind).unlink()
    np.testing.assert_array_equal(pack.read("inputs", ALL), content["inputs"])
    pack.read_from(None)
    with pytest.raises(UserError, match="cannot be read"):
        pack.read("inputs", ALL)
    pack.close()
    assert [field.name for field in IMAGES] == list(pack.fields)
