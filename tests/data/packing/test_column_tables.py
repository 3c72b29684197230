"""Arrow files, tables and data sets of a program, files of NumPy."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
from phalanx.errors import UserError
from tests.data.packing.read import RANDOM, everything, png

pa = pytest.importorskip("pyarrow")


def table(rows: int = 8) -> Any:
    words = pa.array(["ab"[i % 2] for i in range(rows)]).dictionary_encode()
    return pa.table({"x": np.arange(rows) / 2, "y": np.arange(rows), "kind": words})


def write(path: Path, content: Any, *, stream: bool = False, compression: str | None = None) -> str:
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with make(str(path), content.schema, options=options) as writer:
        writer.write_table(content, max_chunksize=3)
    return str(path)


@pytest.mark.parametrize("stream", [False, True])
def test_arrow_files(tmp_path: Path, stream: bool) -> None:
    for part in range(2):
        write(tmp_path / f"{part}.arrow", table(), stream=stream)
    with closing(find_origin(str(tmp_path), OriginOptions(target="kind"))) as origin:
        assert [len(chunk) for chunk in origin.chunks] == 2 * [3, 3, 2]
        inputs, targets = everything(origin)
    assert [row.tolist() for row in inputs] == 2 * [[i / 2, i] for i in range(8)]
    assert (targets.tolist(), origin.classes) == (8 * [0, 1], ["a", "b"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_arrow_files_that_are_refused(tmp_path: Path, stream: bool, compression: str) -> None:
    """What compressed batches unpack to is known when they have taken the memory."""
    source = write(tmp_path / "t.arrow", table(), stream=stream, compression=compression)
    with pytest.raises(UserError, match=r"t.arrow is compressed with .*: refused\nwrite it again"):
        find_origin(source, OriginOptions(target="kind"))
    source = write(tmp_path / "t.arrow", table(), stream=stream)
    content = Path(source).read_bytes()
    for cut in (5, 300, len(content) // 2):
        Path(source).write_bytes(content[:cut])
        with pytest.raises(UserError, match=r"t.arrow cannot be read as Arrow|no rows"):
            find_origin(source, OriginOptions(target="kind"))


def test_few_long_words_in_many_rows_of_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.data.unpacked.ARRAY_BYTES", 2**20)
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 9000), pa.array(["w" * 10_000]))
    content = pa.table({"x": np.zeros(9000), "t": words})
    with pa.ipc.new_file(str(tmp_path / "t.arrow"), content.schema) as writer:
        writer.write_table(content)
    with pytest.raises(UserError, match=r"batch 0, column 't' unpacks from 0.1 MB to 90 MB"):
        find_origin(str(tmp_path / "t.arrow"), OriginOptions(target="t"))


PROGRAM = """
import numpy as np
import pyarrow as pa

def rows():
    return {"image": [{"bytes": IMAGE, "path": None}] * 6, "size": [[1.0, i] for i in range(6)],
            "label": [i % 2 for i in range(6)]}

def table():
    return pa.table(rows())

def dataset():
    import datasets
    made = datasets.Dataset.from_dict(rows())
    return made.cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))

def chosen():
    return dataset().select([4, 3])
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "my_data.py"
    path.write_text(PROGRAM + f"\nIMAGE = {png(np.zeros((4, 5), np.uint8))!r}\n")
    return str(path)


def test_tables_of_a_program(program: str) -> None:
    options = OriginOptions(inputs=("size", "image"), target="label")
    with closing(find_origin(f"{program}:table", options)) as origin:
        named = {field.name: (field.shape, field.encoding) for field in origin.fields}
        assert named == {"size": ([2], "raw"), "image": ([1, 4, 5], "png"), "targets": ([], "raw")}
        assert origin.classes == ["0", "1"]


def test_data_sets_of_hugging_face(program: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    options = OriginOptions(inputs=("size",), target="label")
    with closing(find_origin(f"{program}:dataset", options)) as origin:
        inputs, targets = everything(origin)
        assert (origin.classes, targets.tolist()) == (["cat", "dog"], 3 * [0, 1])
        assert [row.tolist() for row in inputs] == [[1, i] for i in range(6)]
    with closing(find_origin(f"{program}:chosen", options)) as origin:
        assert [row.tolist() for row in everything(origin)[0]] == [[1, 4], [1, 3]]
    made = datasets.Dataset.from_dict({"x": [0.5, 1.5], "label": [1, 0]})
    made = made.cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))
    made.save_to_disk(tmp_path / "saved")
    with closing(find_origin(str(tmp_path / "saved"), OriginOptions(target="label"))) as origin:
        assert (origin.classes, everything(origin)[1].tolist()) == (["cat", "dog"], [1, 0])
        assert [row.tolist() for row in everything(origin)[0]] == [[0.5], [1.5]]


def test_files_of_numpy(tmp_path: Path) -> None:
    images, labels = RANDOM.random((9, 2, 3)), np.arange(9) % 3
    np.savez_compressed(tmp_path / "t.npz", images=images, labels=labels)
    options = OriginOptions(inputs=("images",), target="labels")
    with closing(find_origin(str(tmp_path / "t.npz"), options)) as origin:
        inputs, targets = everything(origin)
        np.testing.assert_array_equal(np.array(inputs), images)
        assert (targets.tolist(), origin.classes) == (labels.tolist(), ["0", "1", "2"])
    np.save(tmp_path / "x.npy", images)
    with closing(find_origin(str(tmp_path / "x.npy"), OriginOptions())) as origin:
        rows: Any = origin.read(np.arange(9))
        np.testing.assert_array_equal(rows["inputs"], images)
    np.savez(tmp_path / "u.npz", x=images, y=labels[:3])
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-8])
    for name, message in (
        ("u.npz", "u.npz: its arrays need equal numbers of rows: x 9, y 3"),
        ("o.npy", "o.npy is not an array: Array can't be memory-mapped: Python objects"),
        ("cut.npy", "cut.npy is not an array: mmap length is greater than file size"),
    ):
        with pytest.raises(UserError, match=message):
            find_origin(str(tmp_path / name), OriginOptions())
