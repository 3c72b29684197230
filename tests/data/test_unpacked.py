"""Small files that unpack without end are refused before they take the memory."""

import io
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.data import unpacked
from phalanx.data.packing.column_table import read_parquet
from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
from phalanx.data.unpacked import check_unpacked, check_zlib
from phalanx.errors import UserError
from tests.data.packing.test_records import database

ZEROS = bytes(3 * 2**20)
RANDOM = np.random.default_rng(0).bytes(3 * 2**20)


@pytest.fixture(autouse=True)
def a_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "ARRAY_BYTES", 2**20)


def test_streams_of_zlib() -> None:
    check_zlib(zlib.compress(RANDOM), "it")
    with pytest.raises(UserError, match=r"it unpacks from 0\.\d MB to \d MB or more: refused"):
        check_zlib(zlib.compress(ZEROS), "it")
    with pytest.raises(UserError, match="it is damaged: "):
        check_zlib(b"no stream", "it")
    with pytest.raises(UserError, match=r"it: .* GB of memory needed"):
        check_unpacked(2**50, 2**49, "it")


def refused(source: Path, **options: Any) -> None:
    with (
        pytest.raises(
            UserError, match=r"unpacks from 0\.. MB to \d+ MB or more: refused"
        ) as caught,
        closing(find_origin(str(source), OriginOptions(**options))) as origin,
    ):
        origin.read(np.arange(2))
    assert str(source) in str(caught.value)


def test_npz_in_lmdb(tmp_path: Path) -> None:
    """A database of 2.9 MB took 5.7 GB."""
    pytest.importorskip("lmdb")
    file = io.BytesIO()
    np.savez_compressed(file, x=np.zeros(2**20))
    database(tmp_path / "t.lmdb", [file.getvalue()] * 2, subdir=False)
    refused(tmp_path / "t.lmdb")


def test_chunks_of_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "t.h5", "w") as file:
        made = file.create_dataset("inputs", (4,), "i4", chunks=(2,), compression="gzip")
        made[:2] = [1, 2]
        made.id.write_direct_chunk((2,), zlib.compress(ZEROS))
        file["targets"] = [0, 1, 0, 1]
    refused(tmp_path / "t.h5")


def test_words_of_a_dictionary_of_parquet(tmp_path: Path) -> None:
    """A word of a dictionary is stored once, and stands in every row that is read."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    words = pa.array(["x" * 10_000] * 1_000 + ["y"] * 1_000)
    parquet.write_table(pa.table({"x": np.arange(2_000) / 2, "t": words}), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", target="t")
    parquet.write_table(pa.table({"x": np.zeros(10**6), "t": [0, 1] * 500_000}), tmp_path / "t.pq")
    table = read_parquet([tmp_path / "t.pq"])
    with pytest.raises(UserError, match=r"row group 0, column 'x' unpacks from 0.0 MB to 8 MB"):
        table.read(["x"], np.arange(2))
    table.close()
