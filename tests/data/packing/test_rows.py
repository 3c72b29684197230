"""Arrays whose rows are samples: NetCDF and Zarr; several inputs of HDF5."""

import base64
import json
import os
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.data.packed.pack import Pack
from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.origin import OriginOptions
from phalanx.data.packing.run import PackingOptions, pack
from phalanx.errors import UserError
from tests.data.packing.read import RANDOM, everything


def netcdf(path: Path, start: int = 0, kind: str = "NETCDF4", rows: int = 4) -> str:
    """Fields t (packed as int16), p, and class, of days; as climate models write them."""
    library = pytest.importorskip("netCDF4")
    with library.Dataset(path, "w", format=kind) as file:
        for name, size in (("day", None), ("lat", 2), ("lon", 3)):
            file.createDimension(name, size)
        days = np.arange(start, start + rows)
        file.createVariable("day", "f8", ("day",))[:] = days
        file.createVariable("lat", "f8", ("lat",))[:] = [0, 1]
        warm = file.createVariable("t", "i2", ("day", "lat", "lon"), fill_value=-1)
        warm.scale_factor, warm.add_offset = np.float32(0.5), np.float32(10)
        warm[:] = np.ones((rows, 2, 3)) * days[:, None, None] + 10
        file.createVariable("p", "f4", ("day", "lat"))[:] = np.ones((rows, 2)) * days[:, None]
        file.createVariable("class", "i4", ("day",))[:] = days % 2
    return str(path)


@pytest.mark.parametrize("kind", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_netcdf(tmp_path: Path, kind: str) -> None:
    source = netcdf(tmp_path / "a.nc", kind=kind)
    with closing(find_origin(source, OriginOptions(inputs=("t",), target="class"))) as origin:
        inputs, targets = everything(origin)
        assert inputs[3].tolist() == [[13.0] * 3] * 2
        assert (inputs[0].dtype, targets.tolist()) == (np.float32, [0, 1, 0, 1])
    with closing(find_origin(source, OriginOptions())) as origin:
        names = {field.name: field.shape for field in origin.fields}
        assert names == {"t": [2, 3], "p": [2], "class": []}


def test_netcdf_of_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.data.packing.rows_origin.CHUNK_BYTES", 64)
    for year in range(3):
        netcdf(tmp_path / f"{1990 + year}.nc", 4 * year)
    options = OriginOptions(inputs=("t",), target="p")
    with closing(find_origin(str(tmp_path), options)) as origin:
        inputs, targets = everything(origin)
        assert [part[0, 0] for part in inputs] == [10 + i for i in range(12)]
        assert targets.tolist() == [[i, i] for i in range(12)]
        assert len(origin.chunks) == 6
        pack(origin, tmp_path / "p", PackingOptions(validation=0))
    read = Pack(tmp_path / "p" / "train")
    days = read.read("targets", np.arange(12))[:, 0]
    assert (read.read("inputs", np.arange(12))[:, 1, 2] == days + 10).all()
    with pytest.raises(UserError, match=r"1991.nc: t is float64 of \(2, 3\), and float32 of"):
        change(tmp_path / "1991.nc")
        find_origin(str(tmp_path), options)


def change(path: Path) -> None:
    library = pytest.importorskip("netCDF4")
    with library.Dataset(path, "a") as file:
        file["t"].scale_factor = np.float64(0.5)


def test_netcdf_that_is_refused(tmp_path: Path) -> None:
    library = pytest.importorskip("netCDF4")
    source = netcdf(tmp_path / "a.nc")
    for options, message in (
        (OriginOptions(target="x"), "has no variable 'x': it has day, lat, t, p, class"),
        (OriginOptions(inputs=("t",), target="lat"), "t has 4 rows, lat 2"),
    ):
        with pytest.raises(UserError, match=message):
            find_origin(source, options)
    with library.Dataset(source, "a") as file:
        file["t"][2, 1, 1] = np.ma.masked
    with pytest.raises(UserError, match=r"a.nc, t row 2: it has no value"):
        everything(find_origin(source, OriginOptions(inputs=("t",), target="p")))
    (tmp_path / "no.nc").write_bytes(b"no")
    with pytest.raises(UserError, match="cannot be read as NetCDF"):
        find_origin(str(tmp_path / "no.nc"), OriginOptions())


def test_netcdf_does_not_lead_to_other_files(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    source = netcdf(tmp_path / "a.nc")
    netcdf(tmp_path / "b.nc")
    with h5py.File(source, "a") as file:
        file["elsewhere"] = h5py.ExternalLink("b.nc", "t")
    with pytest.raises(UserError, match=r"has no variable|lies in another file"):
        find_origin(source, OriginOptions(inputs=("elsewhere",)))


def store(path: Path, version: int = 3) -> Any:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(path, mode="w", zarr_format=version)
    rows = np.arange(10, dtype=np.float32)
    cubes = np.ones((10, 2, 3), np.float32) * rows[:, None, None]
    group.create_array("cubes", data=cubes, chunks=(3, 2, 3))
    group.create_array("more/masks", data=(cubes > 4).astype(np.uint8), chunks=(10, 2, 3))
    group.create_array("energy", data=rows, chunks=(10,))
    return group


@pytest.mark.parametrize("version", [2, 3])
def test_zarr(tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.data.packing.rows_origin.CHUNK_BYTES", 100)
    store(tmp_path / "a.zarr", version)
    source = str(tmp_path / "a.zarr")
    with closing(find_origin(source, OriginOptions(inputs=("cubes",), target="energy"))) as origin:
        inputs, targets = everything(origin)
        assert [part[1, 2] for part in inputs] == targets.tolist() == list(range(10))
        assert [len(chunk) for chunk in origin.chunks] == [3, 3, 3, 1]
    with closing(find_origin(source, OriginOptions(inputs=("cubes",), target="more/masks"))) as o:
        assert (o.fields[1].dtype, o.fields[1].shape, o.classes) == ("uint8", [2, 3], [])
        inputs, masks = everything(o)
        assert (masks == (np.array(inputs) > 4)).all()
    with closing(find_origin(source, OriginOptions())) as origin:
        assert {field.name for field in origin.fields} == {"cubes", "more_masks", "energy"}
    with closing(find_origin(f"{source}/cubes", OriginOptions())) as origin:
        assert [field.name for field in origin.fields] == ["inputs"]


def test_zarr_with_the_attributes_of_xarray(tmp_path: Path) -> None:
    group = store(tmp_path / "a.zarr", 2)
    values = np.arange(10, dtype=np.int16)
    warm = group.create_array("t", data=values, chunks=(10,), fill_value=-1)
    warm.attrs.update({"scale_factor": 0.5, "add_offset": 1, "_ARRAY_DIMENSIONS": ["day"]})
    group.create_array("day", data=values).attrs["_ARRAY_DIMENSIONS"] = ["day"]
    source, options = str(tmp_path / "a.zarr"), OriginOptions(inputs=("t",), target="energy")
    with closing(find_origin(source, options)) as origin:
        assert [float(part) for part in everything(origin)[0]] == [1 + i / 2 for i in range(10)]
    with closing(find_origin(source, OriginOptions())) as origin:
        assert "day" not in {field.name for field in origin.fields}
    warm[6] = -1
    with pytest.raises(UserError, match="t row 6: it has no value"):
        everything(find_origin(source, options))


def test_zarr_that_is_refused(tmp_path: Path) -> None:
    group = store(tmp_path / "a.zarr", 2)
    group.create_array("short", data=np.arange(3))
    source = str(tmp_path / "a.zarr")
    with pytest.raises(UserError, match=r"which arrays of .* are wanted\? name them with --inputs"):
        find_origin(source, OriginOptions())
    with pytest.raises(UserError, match="has no array 'x'"):
        find_origin(source, OriginOptions(inputs=("x",)))
    meta = tmp_path / "a.zarr" / "cubes" / ".zarray"
    described = json.loads(meta.read_text())
    meta.write_text(json.dumps({**described, "compressor": {"id": "pickle"}}))
    with pytest.raises(UserError, match="pickle"):
        find_origin(source, OriginOptions(inputs=("cubes",)))
    meta.write_text("{")
    with pytest.raises(UserError, match="cannot be read as Zarr"):
        find_origin(f"{source}/cubes", OriginOptions())


def test_several_inputs_of_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
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


def refusal(source: Path, **options: Any) -> str:
    with (
        pytest.raises(UserError) as caught,
        closing(find_origin(str(source), OriginOptions(**options))) as o,
    ):
        everything(o) if options else o.read(np.arange(4))
    return str(caught.value)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("mark", ["_FillValue", "missing_value"])
def test_missing_values_of_zarr(tmp_path: Path, version: int, mark: str) -> None:
    """-9999, which xarray and NetCDF take for missing, was packed as a temperature."""
    group = store(tmp_path / "a.zarr", version)
    for kind, value in (("i2", -9999), ("f4", 1e20)):
        array = group.create_array(kind, data=np.arange(10).astype(kind))
        packed = base64.b64encode(struct.pack("<d", value)).decode()  # as xarray writes floats
        array.attrs[mark] = packed if (kind, version) == ("f4", 3) else value
        with closing(
            find_origin(str(tmp_path / "a.zarr"), OriginOptions(inputs=(kind,)))
        ) as origin:
            origin.read(np.arange(10))
        array[6] = value
        words = refusal(tmp_path / "a.zarr", inputs=(kind,), target="energy")
        assert f"{kind} row 6: it has no value, or one that means so" in words


def test_fill_values_of_xarray_in_zarr_2(tmp_path: Path) -> None:
    group = store(tmp_path / "a.zarr", 2)
    array = group.create_array("t", data=np.arange(10), chunks=(5,), fill_value=7)
    options = OriginOptions(inputs=("t",), target="energy")
    with closing(find_origin(str(tmp_path / "a.zarr"), options)) as origin:
        assert len(everything(origin)[0]) == 10, "any number, in an array that xarray did not write"
    array.attrs["_ARRAY_DIMENSIONS"] = ["day"]
    assert "t row 7: it has no value" in refusal(
        tmp_path / "a.zarr", inputs=("t",), target="energy"
    )


def test_lost_chunks_are_said(tmp_path: Path) -> None:
    """A chunk that was lost is zeros, and nothing said so."""
    h5py = pytest.importorskip("h5py")
    store(tmp_path / "a.zarr")
    next((tmp_path / "a.zarr" / "cubes").rglob("1/0/0")).unlink()
    with closing(find_origin(str(tmp_path / "a.zarr"), OriginOptions())) as origin:
        assert origin.notes == ["cubes: 1 of 4 chunks are not there, and are packed as 0.0"]
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file.create_dataset("inputs", (9, 2), "i4", chunks=(2, 1))[:3] = 1
        file["targets"] = np.arange(9) % 2
    with closing(find_origin(str(tmp_path / "t.h5"), OriginOptions())) as origin:
        assert origin.notes == ["inputs: 6 of 10 chunks are not there, and are packed as 0"]
    with h5py.File(tmp_path / "t.h5", "a") as file:
        file["inputs"].attrs["_FillValue"] = 0
    assert "inputs row 3: it has no value" in refusal(tmp_path / "t.h5", target="targets")


def test_zarr_does_not_lead_to_other_files(tmp_path: Path) -> None:
    """A chunk that is a link to another file had that file's bytes packed; a FIFO would hang."""
    store(tmp_path / "a.zarr", 2)
    (tmp_path / "secret").write_bytes(b"secret" * 9)
    chunk = tmp_path / "a.zarr" / "cubes" / "1.0.0"
    chunk.unlink()
    chunk.symlink_to("../../secret")
    assert f"is refused: {chunk} is a link, to ../../secret" in refusal(tmp_path / "a.zarr")
    chunk.unlink()
    os.mkfifo(chunk)
    assert f"{chunk} cannot be read: Not a regular file" in refusal(tmp_path / "a.zarr")
    chunk.unlink()
    (tmp_path / "a.zarr" / "elsewhere").symlink_to(tmp_path)
    assert "elsewhere is a link, to " in refusal(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / "elsewhere").unlink()
    (tmp_path / "b.zarr").symlink_to("a.zarr")
    with closing(find_origin(str(tmp_path / "b.zarr"), OriginOptions())) as origin:
        assert len(origin.fields) == 3, "a link that the user names is the user's"
