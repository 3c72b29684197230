"""The commands of docs/data.md do what the page says."""

import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from phalanx.cli.data_pack import pack_data
from phalanx.data.packed.index_file import read_index
from phalanx.data.packed.pack import Pack
from phalanx.data.packing.options import OriginOptions
from phalanx.errors import UserError
from tests.data.packing.read import png
from tests.data.packing.test_column_tables import write as arrow_file
from tests.data.packing.test_find_origin import write_idx
from tests.data.packing.test_functions import PROGRAM
from tests.data.packing.test_records import database, example, lines, npz

PAGE = Path(__file__).parents[3] / "docs" / "data.md"
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


def saved(path: Path) -> None:
    content = pytest.importorskip("pyarrow").table(
        {"tokens": [[i, 1] for i in ROWS], "label": [i % 2 for i in ROWS]}
    )
    path.mkdir()
    arrow_file(path / "data-00000-of-00001.arrow", content, stream=True)


MAKERS: dict[str, Callable[[Path], object]] = {
    "photos/": photos,
    "idx/": idx,
    "iris.csv": lambda path: path.write_text("size,species\n" + "1.5,a\n2.5,b\n" * 4),
    "molecules.jsonl": molecules,
    "saved/": saved,
    "arrays.npz": lambda path: np.savez(path, x=np.zeros((8, 3)), y=np.arange(8) % 2),
    "table.parquet": table,
    "cells.h5": cells,
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
        reading=OriginOptions(
            inputs=(given["--inputs"],) if "--inputs" in given else (),
            target=given.get("--target"),
            size=given.get("--size"),
        ),
    )
    assert "train" in capsys.readouterr().out
    index = read_index(tmp_path / target / "train")
    assert {field.name for field in index.fields} == {"inputs", "targets"}


def test_every_kind_is_documented() -> None:
    sources = {source.partition(":")[0] for source, *_ in COMMAND.findall(PAGE.read_text())}
    assert sources == MAKERS.keys()


CLIMATE = re.search(r"```python\n(# climate\.py\n.*?)```", PAGE.read_text(), re.DOTALL)


def years(place: Path, kind: str) -> None:
    """Write two years of four days; t is packed as int16, as climate models write it."""
    xarray = pytest.importorskip("xarray")
    files = []
    for year in range(2):
        days = np.arange(4 * year, 4 * year + 4)
        t = (("day", "lat"), np.ones((4, 2), np.float32) * days[:, None])
        files.append(xarray.Dataset({"t": t, "p": ("day", days / 8)}, {"day": days}))
    packing = {"t": {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1}}
    if kind == "zarr":
        pytest.importorskip("zarr")
        xarray.concat(files, "day").to_zarr(place / "climate.zarr", encoding=packing, zarr_format=2)
        return
    (place / "years").mkdir()
    for year, file in enumerate(files):
        file.to_netcdf(place / "years" / f"{year}.nc", encoding=packing)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
def test_netcdf_and_zarr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    assert CLIMATE is not None
    years(tmp_path, kind)
    text = CLIMATE[1]
    if kind == "zarr":
        opened = re.search(r"xarray\.open_mfdataset\(.*?\)", text)
        assert opened is not None
        text = text.replace(opened[0], 'xarray.open_zarr("climate.zarr")')
    else:
        pytest.importorskip("dask", reason="joins files for open_mfdataset")
    (tmp_path / "climate.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    pack_data("climate.py:samples", Path("climate.pack"))
    pack = Pack(tmp_path / "climate.pack" / "train")
    inputs, targets = (pack.read(name, np.arange(7)) for name in ("inputs", "targets"))
    assert (inputs[:, 1] == targets * 8).all()
    pack.close()
    source, refusal = ("climate.zarr" if kind == "zarr" else "years"), "is NetCDF or Zarr: open it"
    with pytest.raises(UserError, match=refusal):
        pack_data(source, Path("other.pack"))


def test_masked_values_are_refused(tmp_path: Path) -> None:
    """NumPy hands on what lies under the mask."""
    (tmp_path / "m.py").write_text(
        "import numpy as np\nrows = [np.ma.array([1.0, 2.0], mask=[0, i]) for i in range(2)]\n"
    )
    with pytest.raises(UserError, match="sample 1, field 'inputs': it has masked values"):
        pack_data(f"{tmp_path}/m.py:rows", tmp_path / "p")
