"""Any damage to a source: it is packed whole, or refused in a line or two.

No traceback, no hang, no sample lost in silence.
"""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packed.pack import Pack
from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
from phalanx.data.packing.run import PackingOptions, pack
from phalanx.errors import UserError
from tests.data.packed.made import folder
from tests.data.packing.read import png
from tests.data.packing.test_column_tables import write as write_arrow
from tests.data.packing.test_find_origin import write_idx
from tests.data.packing.test_records import lines

h5py = pytest.importorskip("h5py")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.filterwarnings("ignore:::PIL")  # about damaged TIFFs

SAMPLES = 12
IMAGES = np.random.default_rng(0).integers(0, 256, (SAMPLES, 6, 5, 3)).astype(np.uint8)
LABELS = np.arange(SAMPLES) % 3


def tar_of_images(place: Path) -> OriginOptions:
    with tarfile.open(place / "t.tar", "w") as archive:
        for i in range(SAMPLES):
            for ending, content in (("png", png(IMAGES[i])), ("cls", b"%d" % LABELS[i])):
                info = tarfile.TarInfo(f"{i:03d}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return OriginOptions()


def tar_of_arrays(place: Path) -> OriginOptions:
    with tarfile.open(place / "t.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for i in range(SAMPLES):
            for ending, array in (("inputs.npy", IMAGES[i] / 255), ("targets.npy", LABELS[i])):
                file = io.BytesIO()
                np.save(file, array)
                info = tarfile.TarInfo(f"ключ-{i:03d}.{ending}")
                info.size = file.tell()
                file.seek(0)
                archive.addfile(info, file)
    return OriginOptions()


def csv_table(place: Path) -> OriginOptions:
    rows = [f"{i / 7},{i},kind{LABELS[i]}" for i in range(SAMPLES)]
    (place / "t.csv").write_text("\n".join(["a,b,t", *rows]) + "\n")
    return OriginOptions(target="t")


def zipped_csv(place: Path) -> OriginOptions:
    csv_table(place)
    (place / "t.csv.gz").write_bytes(gzip.compress((place / "t.csv").read_bytes()))
    (place / "t.csv").unlink()
    return OriginOptions(target="t")


def parquet_table(place: Path) -> OriginOptions:
    columns = {"a": np.arange(SAMPLES) / 7, "image": [png(image) for image in IMAGES], "t": LABELS}
    parquet.write_table(pyarrow.table(columns), place / "t.parquet", row_group_size=5)
    return OriginOptions(target="t", inputs=("image",))


def hdf5_file(place: Path) -> OriginOptions:
    with h5py.File(place / "t.h5", "w") as file:
        file.create_dataset("inputs", data=IMAGES / 255, chunks=(5, 6, 5, 3), compression="gzip")
        file["targets"] = LABELS
    return OriginOptions()


def image_folder(place: Path) -> OriginOptions:
    for i, image in enumerate(IMAGES):
        kind = ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP")[i % 6]
        path = place / "pets" / f"kind{LABELS[i]}" / f"{i}.{kind.lower()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(image, kind))
    return OriginOptions()


def idx_files(place: Path) -> OriginOptions:
    (place / "idx").mkdir()
    write_idx(place / "idx" / "train-images-idx3-ubyte.gz", IMAGES[..., 0])
    write_idx(place / "idx" / "train-labels-idx1-ubyte", LABELS)
    return OriginOptions()


def arrow_file(place: Path) -> OriginOptions:
    columns = {"a": np.arange(SAMPLES) / 7, "b": IMAGES[..., 0].reshape(SAMPLES, -1).tolist()}
    write_arrow(place / "t.arrow", pyarrow.table({**columns, "t": LABELS}), stream=True)
    return OriginOptions(target="t", inputs=("b",))


def npz_file(place: Path) -> OriginOptions:
    np.savez_compressed(place / "t.npz", x=IMAGES, y=LABELS)
    return OriginOptions(target="y", inputs=("x",))


def json_file(place: Path) -> OriginOptions:
    lines(place / "t.jsonl", [{"x": [i, i / 7], "y": int(LABELS[i])} for i in range(SAMPLES)])
    return OriginOptions(target="y", inputs=("x",))


MAKERS: list[Callable[[Path], OriginOptions]] = [
    *(tar_of_images, tar_of_arrays, csv_table, zipped_csv, parquet_table, hdf5_file),
    *(image_folder, idx_files, arrow_file, npz_file, json_file),
]


def damaged(content: bytes, random: np.random.Generator) -> bytes:
    at, kind = int(random.integers(max(1, len(content)))), random.integers(6)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + random.bytes(int(random.integers(1, 600))) + content[at:]
    if kind == 2:
        return content[:at] + content[at + int(random.integers(1, 600)) :]
    altered = bytearray(content)
    for _ in range(int(random.integers(1, 4)) if altered else 0):
        place = int(random.integers(len(altered)))
        altered[place] ^= 1 << int(random.integers(8))
    if kind == 3:
        end = min(len(content), at + int(random.integers(1, 600)))
        altered[at:end] = bytes([int(random.integers(256))]) * (end - at)
    return bytes(altered)


def attempt(maker: Callable[[Path], OriginOptions], seed: int) -> str:
    """Damage one file of a source and pack it; "packed", or the words of the refusal."""
    random = np.random.default_rng(seed)
    with folder() as place:
        options = maker(place)
        files = sorted(path for path in place.rglob("*") if path.is_file())
        victim = files[random.integers(len(files))]
        victim.write_bytes(damaged(victim.read_bytes(), random))
        source = next(path for path in sorted(place.iterdir()))
        try:
            origin = find_origin(str(source), options)
            try:
                pack(origin, place / "p", PackingOptions())
            finally:
                origin.close()
        except UserError as error:
            return str(error)
        num_samples = 0
        for split in ("train", "validation"):
            found = Pack(place / "p" / split)
            for field in found.fields:
                num_samples += len(found.read_each(field, np.arange(found.num_samples)))
            found.close()
        if maker in (tar_of_images, tar_of_arrays, image_folder, idx_files, hdf5_file, npz_file):
            assert num_samples == 2 * SAMPLES, "samples lost in silence"
        return "packed"


def attempts(count: int) -> None:
    outcomes = []
    for seed in range(count):
        maker = MAKERS[seed % len(MAKERS)]
        words = attempt(maker, seed)
        assert len(words.splitlines()) <= 2, (maker.__name__, seed, words)
        assert len(words) < 700, (maker.__name__, seed, words)
        outcomes.append(words)
    num_packed = outcomes.count("packed")
    assert 0 < num_packed < count, "both happen"


def test_damaged_sources() -> None:
    attempts(55)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_500_damaged_sources() -> None:
    attempts(500)
