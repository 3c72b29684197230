"""Images of folders: kept as they are, or decoded to one size."""

import io
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from phalanx.data.packing.find import find_origin
from phalanx.data.packing.origin import Wanted
from phalanx.errors import UserError
from tests.data.packing.read import RANDOM, everything, packed, png

image_module = pytest.importorskip("PIL.Image")


def make_images(folder: Path, shape: tuple[int, ...] = (6, 5, 3)) -> dict[str, NDArray[np.uint8]]:
    images = {}
    for kind in ("cat", "dog"):
        (folder / kind).mkdir(parents=True)
        for i in range(3):
            images[f"{kind}/{i}.png"] = RANDOM.integers(0, 256, shape).astype(np.uint8)
            (folder / kind / f"{i}.png").write_bytes(png(images[f"{kind}/{i}.png"]))
    return images


def test_folders_of_images(tmp_path: Path) -> None:
    images = make_images(tmp_path / "pets")
    origin = find_origin(str(tmp_path / "pets"), Wanted())
    inputs, targets = everything(origin)
    assert inputs == [(tmp_path / "pets" / name).read_bytes() for name in images]
    assert targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert origin.classes == ["cat", "dog"]
    train, validation = packed(origin, tmp_path / "p")
    assert train.index.layout == "tar"
    assert train.fields["inputs"].shape == [3, 6, 5]
    got = np.concatenate(
        [train.read("inputs", np.arange(4)), validation.read("inputs", np.arange(2))]
    )
    expected = np.array(list(images.values())).transpose(0, 3, 1, 2)
    assert sorted(map(bytes, got)) == sorted(map(bytes, expected))
    train.close()
    validation.close()


def test_images_of_one_size(tmp_path: Path) -> None:
    make_images(tmp_path / "pets")
    (tmp_path / "pets" / "dog" / "wide.jpg").write_bytes(
        png(np.full((4, 9, 3), 200, np.uint8), "JPEG")
    )
    with pytest.raises(UserError, match=r"images differ in size: .* is 6×5, .*wide.jpg 4×9"):
        find_origin(str(tmp_path / "pets"), Wanted(decode=True))
    kept = find_origin(str(tmp_path / "pets"), Wanted())
    assert kept.fields[0].shape is None
    sized = find_origin(str(tmp_path / "pets"), Wanted(size=(3, 2)))
    inputs, _ = everything(sized)
    assert np.array(inputs).shape == (7, 3, 3, 2)
    assert abs(int(inputs[-1].mean()) - 200) < 3


def test_grey_images_and_other_formats(tmp_path: Path) -> None:
    images = make_images(tmp_path / "pets", (4, 4))
    name = next(iter(images))
    (tmp_path / "pets" / name).write_bytes(png(images[name], "BMP"))
    origin = find_origin(str(tmp_path / "pets"), Wanted())
    inputs, _ = everything(origin)
    assert origin.fields[0].shape == [1, 4, 4]
    assert all(content.startswith(b"\x89PNG") for content in inputs)
    np.testing.assert_array_equal(image_module.open(io.BytesIO(inputs[0])), images[name])


def test_train_and_validation_folders(tmp_path: Path) -> None:
    make_images(tmp_path / "pets" / "train")
    make_images(tmp_path / "pets" / "val")
    origin = find_origin(str(tmp_path / "pets"), Wanted())
    assert origin.validation is not None
    assert origin.validation.tolist() == [6, 7, 8, 9, 10, 11]
    (tmp_path / "pets" / "val" / "dog").rename(tmp_path / "pets" / "val" / "wolf")
    with pytest.raises(UserError, match="val/wolf: no such class"):
        find_origin(str(tmp_path / "pets"), Wanted())


def test_images_that_are_damaged(tmp_path: Path) -> None:
    make_images(tmp_path / "pets")
    broken = tmp_path / "pets" / "dog" / "1.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(UserError, match=r"dog/1.png is not an image"):
        everything(find_origin(str(tmp_path / "pets"), Wanted()))
    broken.write_bytes(b"hello")
    with pytest.raises(UserError, match=r"dog/1.png is not an image"):
        find_origin(str(tmp_path / "pets"), Wanted())
