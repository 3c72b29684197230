"""Data sets of HDF5 files, block by block."""

from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packing.find import find_origin
from phalanx.data.packing.origin import Wanted
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
    origin = find_origin(path, Wanted(inputs=("group/cubes",)))
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
        find_origin(path, Wanted())
    with pytest.raises(UserError, match="has no data set 'cubes'"):
        find_origin(path, Wanted(inputs=("cubes",)))
    with pytest.raises(UserError, match="group/cubes has 9 rows, short 3"):
        find_origin(path, Wanted(inputs=("group/cubes",), target="short"))
    with pytest.raises(UserError, match="names is object"):
        find_origin(path, Wanted(inputs=("names",)))
    (tmp_path / "no.h5").write_bytes(b"no")
    with pytest.raises(UserError, match="cannot be read as HDF5"):
        find_origin(str(tmp_path / "no.h5"), Wanted())
