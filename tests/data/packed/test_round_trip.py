"""Samples read back equal the samples packed, for any shape, dtype and shards."""

import zlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.packed.index import Field
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.writer import PackWriter
from tests.data.packed.made import files_of, folder, rows

DTYPES = ("uint8", "bool", "int16", "uint32", "int64", "float16", "float32", "float64", "complex64")

shapes = st.lists(st.integers(0, 5), max_size=3)
fields = st.lists(st.tuples(st.sampled_from(DTYPES), shapes), min_size=1, max_size=3).map(
    lambda kinds: [
        Field(name=f"part-{i}", dtype=dtype, shape=shape) for i, (dtype, shape) in enumerate(kinds)
    ]
)


@settings(max_examples=40, deadline=None)
@given(fields, st.integers(1, 30), st.integers(1, 30_000), st.data())
def test_any_rows_come_back(
    fields: list[Field], num_samples: int, shard_bytes: int, data: st.DataObject
) -> None:
    content = rows(fields, num_samples)
    cut = data.draw(st.integers(0, num_samples), label="added one by one")
    with folder() as path:
        with PackWriter(path / "p", fields=fields, shard_bytes=shard_bytes) as writer:
            for i in range(cut):
                writer.add({name: part[i, ...] for name, part in content.items()})
            writer.add_rows({name: part[cut:] for name, part in content.items()})
        pack = Pack(path / "p")
        assert pack.num_samples == num_samples == pack.first_samples[-1]
        order = np.array(data.draw(st.lists(st.integers(0, num_samples - 1), max_size=40)), int)
        for field in fields:
            got, expected = pack.read(field.name, order), content[field.name][order]
            assert got.dtype == expected.dtype
            assert got.tobytes() == expected.tobytes()
            assert pack.read_bytes(field.name, order) == [row.tobytes() for row in expected]
        pack.close()


@settings(max_examples=15, deadline=None)
@given(fields, st.integers(1, 20), st.integers(1, 20_000))
def test_the_same_samples_make_the_same_bytes(
    fields: list[Field], num_samples: int, shard_bytes: int
) -> None:
    content = rows(fields, num_samples)
    with folder() as path:
        for name in ("once", "again"):
            with PackWriter(path / name, fields=fields, shard_bytes=shard_bytes) as writer:
                if name == "once":
                    writer.add_rows(content)
                else:
                    for i in range(num_samples):
                        writer.add({name: part[i, ...] for name, part in content.items()})
        assert files_of(path / "once") == files_of(path / "again")


@settings(max_examples=15, deadline=None)
@given(st.lists(shapes, min_size=1, max_size=20), st.integers(1, 10_000))
def test_arrays_that_differ_in_shape(sizes: list[list[int]], shard_bytes: int) -> None:
    field = Field(name="inputs", dtype="float32", shape=None)
    arrays = [np.random.default_rng(i).random(size, np.float32) for i, size in enumerate(sizes)]
    with folder() as path:
        with PackWriter(path / "p", fields=[field], shard_bytes=shard_bytes) as writer:
            for array in arrays:
                writer.add({"inputs": array})
        pack = Pack(path / "p")
        for got, expected in zip(
            pack.read_each("inputs", np.arange(len(arrays))), arrays, strict=True
        ):
            np.testing.assert_array_equal(got, expected, strict=True)
        pack.close()


def test_other_programs_read_the_files() -> None:
    """numpy.load maps the arrays, and the table of checksums."""
    field = Field(name="inputs", dtype="int32", shape=[3])
    content = rows([field], 25)
    with folder() as path:
        with PackWriter(path / "p", fields=[field], shard_bytes=12 * 10) as writer:
            writer.add_rows(content)
        files = sorted((path / "p").glob("*.inputs.npy"))
        parts = [np.load(file, mmap_mode="r", allow_pickle=False) for file in files]
        assert [len(part) for part in parts] == [10, 10, 5]
        np.testing.assert_array_equal(np.concatenate(parts), content["inputs"])
        table = np.load(path / "p" / "shard-00000.npy", allow_pickle=False)
        assert table["inputs.crc"].tolist() == [zlib.crc32(row) for row in content["inputs"][:10]]
