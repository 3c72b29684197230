"""Small files that unpack without end are refused before they take the memory."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.data import unpacked
from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.origin import OriginOptions
from phalanx.data.packing.parquet_table import ParquetTable
from phalanx.data.unpacked import check_packed, check_unpacked
from phalanx.errors import UserError
from tests.data.packing.test_records import database

ZEROS = bytes(3 * 2**20)
RANDOM = np.random.default_rng(0).bytes(3 * 2**20)
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bz2": bz2.compress,
    "lzma": lzma.compress,
}


@pytest.fixture(autouse=True)
def a_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "ARRAY_BYTES", 2**20)


@pytest.mark.parametrize("codec", ["gzip", "zlib", "bz2", "lzma", "zstd", "blosc", "lz4"])
def test_codecs(codec: str) -> None:
    encode = PACKERS.get(codec)
    if encode is None:
        encode = pytest.importorskip("numcodecs").get_codec({"id": codec}).encode
    check_packed(codec, encode(RANDOM), "it")
    with pytest.raises(UserError, match=r"it unpacks from 0\.\d MB to \d MB or more: refused"):
        check_packed(codec, encode(ZEROS), "it")
    if codec in ("gzip", "bz2", "lzma"):
        with pytest.raises(UserError, match=r"refused|damaged"):
            check_packed(codec, encode(bytes(2**19)) + encode(ZEROS), "it")


def test_content_of_no_known_size() -> None:
    with pytest.raises(UserError, match="it is packed by own, whose sizes cannot be bounded"):
        check_packed("own", b"", "it")
    for codec, words in (("zstd", b"\x28\xb5\x2f\xfd"), ("bz2", b"BZno")):
        with pytest.raises(UserError, match="it is damaged: "):
            check_packed(codec, words, "it")
    with pytest.raises(UserError, match=r"it: .* GB of memory would be needed"):
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


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("shards", [None, (4,)])
def test_chunks_of_zarr(tmp_path: Path, version: int, shards: tuple[int, ...] | None) -> None:
    """A chunk of 1.9 MB took 3.9 GB, whatever its array said."""
    zarr = pytest.importorskip("zarr")
    if shards and version == 2:
        pytest.skip("Zarr 2 has no shards")
    codecs = pytest.importorskip("numcodecs")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    packer = codecs.GZip(5) if version == 2 else zarr.codecs.GzipCodec(level=5)
    array = group.create_array(
        "x", shape=(4,), chunks=(2,), shards=shards, dtype="i4", compressors=[packer]
    )
    array[:] = [1, 2, 3, 4]
    with closing(find_origin(str(tmp_path / "a.zarr"), OriginOptions())) as origin:
        assert origin.read(np.arange(4))["x"].tolist() == [1, 2, 3, 4]  # type: ignore[call-overload]
    if shards is None:
        name = tmp_path / "a.zarr" / "x" / ("0" if version == 2 else "c/0")
        name.write_bytes(gzip.compress(ZEROS))
        refused(tmp_path / "a.zarr")


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
    table = ParquetTable([tmp_path / "t.pq"])
    with pytest.raises(UserError, match=r"row group 0, column 'x' unpacks from 0.0 MB to 8 MB"):
        table.read(table.groups[0], "x")
    table.close()
