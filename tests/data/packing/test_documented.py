"""The commands of docs/data_packed.md do what the page says."""

import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from phalanx.cli.data_pack import pack_data
from phalanx.data.packed.index_file import read_index
from tests.data.packing.read import png
from tests.data.packing.test_find_origin import write_idx
from tests.data.packing.test_functions import PROGRAM
from tests.data.packing.test_records import database, example, lines, npz
from tests.data.packing.test_rows import netcdf

PAGE = Path(__file__).parents[3] / "docs" / "data_packed.md"
COMMAND = re.compile(r"\| `phalanx data pack (\S+) (\S+)(.*)` \|")
ROWS = range(8)


def photos(path: Path) -> None:
    for name in "ab":
        (path / name).mkdir(parents=True)
        for number in ROWS:
            (path / name / f"{number}.png").write_bytes(png(np.zeros((5, 4, 3), np.uint8)))


def idx(path: Path) -> None:
    path.mkdir()
    write_idx(path / "train-images-idx3-ubyte", np.zeros((8, 4, 4)))
    write_idx(path / "train-labels-idx1-ubyte", np.arange(8) % 2)


def molecules(path: Path) -> None:
    lines(path, [{"places": [[i, 0.5], [i, 1]], "energy": i / 8} for i in ROWS])


def table(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(
        pa.table({"size": list(ROWS), "price": [i / 8 for i in ROWS]}), path
    )


def cells(path: Path) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file["images"], file["labels"] = np.zeros((8, 1, 4, 4)), np.arange(8) % 2


def volumes(path: Path) -> None:
    group = pytest.importorskip("zarr").open_group(path, mode="w")
    group.create_array("volumes", data=np.zeros((8, 4, 4, 4), np.float32))
    group.create_array("masks", data=np.zeros((8, 4, 4, 4), np.uint8))


def faces(path: Path) -> None:
    values = [npz(image=np.zeros((4, 4), np.uint8), age=np.float32(i)) for i in ROWS]
    database(path, values, subdir=False)


def shards(path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.zeros(3, np.float32))
    with tarfile.open(path, "w") as tar:
        for number in ROWS:
            for ending, content in (("npy", array.getvalue()), ("cls", b"%d" % (number % 2))):
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def train(path: Path) -> None:
    image = png(np.zeros((5, 4), np.uint8))
    path.write_bytes(b"".join(example(image=image, label=b"ab"[i % 2 :]) for i in ROWS))


MAKERS: dict[str, Callable[[Path], object]] = {
    "photos/": photos,
    "idx/": idx,
    "iris.csv": lambda path: path.write_text("size,species\n" + "1.5,a\n2.5,b\n" * 4),
    "molecules.jsonl": molecules,
    "table.parquet": table,
    "cells.h5": cells,
    "climate.nc": lambda path: netcdf(path, rows=8),
    "volumes.zarr": volumes,
    "train.tfrecord": train,
    "faces.lmdb": faces,
    "shards.tar": shards,
    "my_data.py": lambda path: path.write_text(PROGRAM),
    "digits": lambda _: None,
}


@pytest.mark.parametrize("command", COMMAND.findall(PAGE.read_text()), ids=lambda c: c[0])
def test_commands(
    command: tuple[str, str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target, rest = command
    monkeypatch.chdir(tmp_path)
    name = source.partition(":")[0]
    MAKERS[name](tmp_path / name)
    if name == "digits":
        pytest.skip("is packed by other tests")
    words = rest.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    pack_data(
        source.replace(":samples", ":pairs"),
        Path(target),
        inputs=(given["--inputs"],) if "--inputs" in given else (),
        target=given.get("--target"),
        size=given.get("--size"),
    )
    assert "train" in capsys.readouterr().out
    index = read_index(tmp_path / target / "train")
    assert {field.name for field in index.fields} == {"inputs", "targets"}


def test_every_kind_is_documented() -> None:
    sources = {source.partition(":")[0] for source, *_ in COMMAND.findall(PAGE.read_text())}
    assert sources == MAKERS.keys()
