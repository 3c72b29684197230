"""Data sets of HDF5 files, block by block."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
from phalanx.errors import UserError
from tests.data.packing.read import RANDOM, everything, packed

h5py = pytest.importorskip("h5py")


def test_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.data.packing.hdf5_file.CHUNK_BYTES", 100)
    cubes = RANDOM.random((9, 2, 3, 2)).astype(">f4")
    with h5py.File(tmp_path / "cubes.h5", "w") as file:
        file["group/cubes"] = cubes
        file["labels"] = np.arange(9) % 4
        file["names"] = [b"x"] * 9
        file["short"] = np.arange(3)
    path = str(tmp_path / "cubes.h5")
    origin = find_origin(path, OriginOptions(inputs=("group/cubes",)))
    assert len(origin.chunks) == 5
    inputs, targets = everything(origin)
    np.testing.assert_array_equal(np.array(inputs), cubes)
    assert inputs[0].dtype == np.dtype("float32")
    assert targets.tolist() == [i % 4 for i in range(9)]
    train, validation = packed(origin, tmp_path / "p")
    assert (train.num_samples, validation.num_samples) == (7, 2)
    train.close()
    validation.close()
    with pytest.raises(UserError, match=r"name them with --inputs and --target: .*group/cubes"):
        find_origin(path, OriginOptions())
    with pytest.raises(UserError, match="has no data set 'cubes'"):
        find_origin(path, OriginOptions(inputs=("cubes",)))
    with pytest.raises(UserError, match="group/cubes has 9 rows, short 3"):
        find_origin(path, OriginOptions(inputs=("group/cubes",), target="short"))
    with pytest.raises(UserError, match="names is object"):
        find_origin(path, OriginOptions(inputs=("names",)))
    (tmp_path / "no.h5").write_bytes(b"no")
    with pytest.raises(UserError, match="cannot be read as HDF5"):
        find_origin(str(tmp_path / "no.h5"), OriginOptions())


SECRET = b"S3CRET" * 20


def link_outside(file: "h5py.File", folder: Path) -> None:
    with h5py.File(folder / "other.h5", "w") as other:
        other["inputs"] = np.frombuffer(SECRET[:40], "u1").reshape(10, 4)
    file["inputs"] = h5py.ExternalLink("other.h5", "inputs")


def store_outside(file: "h5py.File", folder: Path) -> None:
    (folder / "secret").write_bytes(SECRET)
    place = [(str(folder / "secret"), 0, h5py.h5f.UNLIMITED)]
    file.create_dataset("inputs", shape=(10, 4), dtype="u1", external=place)


def virtual_outside(file: "h5py.File", folder: Path) -> None:
    with h5py.File(folder / "other.h5", "w") as other:
        other["x"] = np.frombuffer(SECRET[:40], "u1").reshape(10, 4)
    layout = h5py.VirtualLayout(shape=(10, 4), dtype="u1")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "x", shape=(10, 4))
    file.create_virtual_dataset("inputs", layout)


def soft_link_outside(file: "h5py.File", folder: Path) -> None:
    file.create_group("deep")["elsewhere"] = h5py.ExternalLink("secret.h5", "/")
    file["inputs"] = h5py.SoftLink("/deep/elsewhere/inputs")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (link_outside, "lies in another file, other.h5\nuse that file as"),
        (store_outside, "lies in another file, .*secret\nuse that file as"),
        (virtual_outside, "inputs is virtual, made of .*other.h5, x\ncopy its data"),
        (soft_link_outside, "inputs is a link to /deep/elsewhere/inputs\nuse that"),
    ],
)
def test_data_of_another_file_is_refused(
    write: Callable[["h5py.File", Path], None], message: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "evil.h5", "w") as file:
        write(file, tmp_path)
        file["targets"] = np.arange(10) % 2
    with pytest.raises(UserError, match=message):
        find_origin(str(tmp_path / "evil.h5"), OriginOptions())


def test_hdf5_that_cannot_be_meant(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    inputs = RANDOM.random((40, 3)).astype("f4")
    inputs[17, 1] = np.nan
    with h5py.File(path, "w") as file:
        file["inputs"] = inputs
        file["targets"] = np.arange(40) % 4
        file["prices"] = np.arange(40) * 2_304
        huge = {"shape": (2**40,), "chunks": (2**20,), "dtype": "i8"}
        file.create_dataset("many", **huge)
        file.create_dataset("rows", **huge)
        file.create_dataset("wide", shape=(40, 2**40), chunks=(1, 2**20), dtype="u1")
        file["none"], file["nil"] = np.zeros((0, 3)), np.zeros(0)
    with pytest.raises(UserError, match="the inputs of sample 17, counted from 0, are not all fin"):
        packed(find_origin(str(path), OriginOptions()), tmp_path / "p")
    assert not (tmp_path / "p").exists()
    for options, message in (
        (
            OriginOptions(target="prices"),
            "data set 'prices': targets go up to 89,856\nuse --classes 89857 if",
        ),
        (
            OriginOptions(inputs=("rows",), target="many"),
            "has 1,099,511,627,776 rows: .* GB of mem",
        ),
        (
            OriginOptions(inputs=("wide",)),
            r"a row of wide is \(1099511627776,\): 4,398.0 GB of memory",
        ),
        (OriginOptions(inputs=("none",), target="nil"), "none has no rows"),
    ):
        with pytest.raises(UserError, match=message):
            find_origin(str(path), options)
    prices = find_origin(str(path), OriginOptions(target="prices", classes=0))
    assert (prices.classes, prices.fields[1].dtype) == ([], "float32")


def test_several_inputs_of_hdf5(tmp_path: Path) -> None:
    places, charges = RANDOM.random((9, 5, 3)), RANDOM.random((9, 5)).astype("f4")
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["group/places"], file["charges"] = places, charges
        file["forces"] = -places
    options = OriginOptions(inputs=("group/places", "charges"), target="forces")
    with closing(find_origin(str(tmp_path / "t.h5"), options)) as origin:
        rows: Any = origin.read(np.arange(9))
        assert {field.name: field.dtype for field in origin.fields} == {
            "group_places": "float64", "charges": "float32", "targets": "float64",
        }  # fmt: skip
    np.testing.assert_array_equal(rows["targets"], -rows["group_places"])
    np.testing.assert_array_equal(rows["charges"], charges)


def test_lost_chunks_and_values_that_are_missing(tmp_path: Path) -> None:
    """A chunk that was lost is zeros, and nothing said so; -9999 was packed as a temperature."""
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file.create_dataset("inputs", (9, 2), "i4", chunks=(2, 1))[:3] = 1
        file["targets"] = np.arange(9) % 2
    with closing(find_origin(str(tmp_path / "t.h5"), OriginOptions())) as origin:
        assert origin.notes == ["inputs: 6 of 10 chunks are missing, and are packed as 0"]
    with h5py.File(tmp_path / "t.h5", "a") as file:
        file["inputs"].attrs["_FillValue"] = 0
    with (
        pytest.raises(UserError, match="inputs row 3: it has no value, or a fill value"),
        closing(find_origin(str(tmp_path / "t.h5"), OriginOptions(target="targets"))) as origin,
    ):
        everything(origin)
