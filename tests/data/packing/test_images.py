"""Images of folders: kept as they are, or decoded to one size."""

import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from phalanx.cli.data_pack import pack_data
from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
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
    origin = find_origin(str(tmp_path / "pets"), OriginOptions())
    inputs, targets = everything(origin)
    assert inputs == [(tmp_path / "pets" / name).read_bytes() for name in images]
    assert targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert origin.classes == ["cat", "dog"]
    train, validation = packed(origin, tmp_path / "p")
    assert train.fields["inputs"].shape == [3, 6, 5]
    got = np.concatenate(
        [train.read("inputs", np.arange(4)), validation.read("inputs", np.arange(2))]
    )
    expected = np.array(list(images.values())).transpose(0, 3, 1, 2)
    assert sorted(map(bytes, got)) == sorted(map(bytes, expected))
    train.close()
    validation.close()


def test_images_of_too_many_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scan of 200 megapixels was "not an image", and nothing allowed it."""
    make_images(tmp_path / "pets")
    monkeypatch.setattr(image_module, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(UserError, match=r"has too many pixels: Image size .30 pixels. exceeds lim"):
        find_origin(str(tmp_path / "pets"), OriginOptions())
    pack_data(
        str(tmp_path / "pets"),
        tmp_path / "p",
        reading=OriginOptions(size="4x4"),
        max_megapixels=200,
    )
    assert "inputs uint8 3×4×4" in capsys.readouterr().out
    monkeypatch.setattr("phalanx.data.packing.image_form.MAX_PIXELS", 20)
    with pytest.raises(
        UserError, match=r"0.png has 30 pixels, more than training can read from a file"
    ):
        find_origin(str(tmp_path / "pets"), OriginOptions())


def test_images_of_one_size(tmp_path: Path) -> None:
    make_images(tmp_path / "pets")
    (tmp_path / "pets" / "dog" / "wide.jpg").write_bytes(
        png(np.full((4, 9, 3), 200, np.uint8), "JPEG")
    )
    with pytest.raises(UserError, match=r"images differ in size: .* is 6×5, .*wide.jpg 4×9"):
        find_origin(str(tmp_path / "pets"), OriginOptions(decode=True))
    kept = find_origin(str(tmp_path / "pets"), OriginOptions())
    assert kept.fields[0].shape is None
    sized = find_origin(str(tmp_path / "pets"), OriginOptions(size="3x2"))
    inputs, _ = everything(sized)
    assert np.array(inputs).shape == (7, 3, 3, 2)
    assert abs(int(inputs[-1].mean()) - 200) < 3


def test_grey_images_and_other_formats(tmp_path: Path) -> None:
    images = make_images(tmp_path / "pets", (4, 4))
    name = next(iter(images))
    (tmp_path / "pets" / name).write_bytes(png(images[name], "BMP"))
    origin = find_origin(str(tmp_path / "pets"), OriginOptions())
    inputs, _ = everything(origin)
    assert origin.fields[0].shape == [1, 4, 4]
    assert all(content.startswith(b"\x89PNG") for content in inputs)
    np.testing.assert_array_equal(image_module.open(io.BytesIO(inputs[0])), images[name])


def test_train_and_validation_folders(tmp_path: Path) -> None:
    make_images(tmp_path / "pets" / "train")
    make_images(tmp_path / "pets" / "val")
    origin = find_origin(str(tmp_path / "pets"), OriginOptions())
    assert origin.validation is not None
    assert origin.validation.tolist() == [6, 7, 8, 9, 10, 11]
    (tmp_path / "pets" / "val" / "dog").rename(tmp_path / "pets" / "val" / "wolf")
    with pytest.raises(UserError, match="val/wolf: no such class"):
        find_origin(str(tmp_path / "pets"), OriginOptions())


def test_images_that_are_damaged(tmp_path: Path) -> None:
    make_images(tmp_path / "pets")
    broken = tmp_path / "pets" / "dog" / "1.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(UserError, match=r"dog/1.png is not an image"):
        everything(find_origin(str(tmp_path / "pets"), OriginOptions()))
    broken.write_bytes(b"hello")
    with pytest.raises(UserError, match=r"dog/1.png is not an image"):
        find_origin(str(tmp_path / "pets"), OriginOptions())


def test_what_is_not_packed_is_counted_and_named(tmp_path: Path) -> None:
    pets, elsewhere = tmp_path / "pets", tmp_path / "elsewhere"
    for split in ("train", "val", "test"):
        make_images(pets / split)
    elsewhere.mkdir()
    (elsewhere / "linked.jfif").write_bytes(png(np.zeros((6, 5, 3), np.uint8), "JPEG"))
    (pets / "train" / "cat" / "more").symlink_to(elsewhere)
    (pets / "train" / "fox").symlink_to(elsewhere)
    (pets / "train" / "bird").mkdir()
    (pets / "train" / "loose.png").write_bytes(png(np.zeros((6, 5, 3), np.uint8)))
    (pets / "train" / "dog" / "notes.txt").write_text("woof")
    (pets / "train" / "dog" / "._0.png").write_text("of a Mac")
    origin = find_origin(str(pets), OriginOptions())
    assert origin.classes == ["cat", "dog", "fox"]
    assert [len(chunk) for chunk in origin.chunks] == [6 + 2 + 6], "linked ones too"
    train = pets / "train"
    *skipped, beside = [str(group) for group in origin.skipped]
    assert sorted(skipped) == [
        f"1 files in no class's folder: {train}/loose.png",
        f"1 files that end in none of .png, .jpg, .jpeg …: {train}/dog/notes.txt",
        f"1 folders without images, which are not classes: {train}/bird",
        f"1 hidden files or folders: {train}/dog/._0.png",
    ]
    assert beside.startswith("6 files in folders beside those for training and validation: ")
    assert f"{pets}/test/cat/0.png" in beside


def test_folders_that_cannot_be_meant(tmp_path: Path) -> None:
    make_images(tmp_path / "pets")
    cat = tmp_path / "pets" / "cat"
    (cat / "gone.png").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"cat/gone.png is a link to nothing"):
        find_origin(str(tmp_path / "pets"), OriginOptions())
    (cat / "gone.png").unlink()
    (cat / "circle").symlink_to(tmp_path / "pets" / "cat")
    with pytest.raises(UserError, match=r"cat/circle links to a folder that holds it"):
        find_origin(str(tmp_path / "pets"), OriginOptions())
    (cat / "circle").unlink()
    os.mkfifo(cat / "pipe.png")
    with pytest.raises(UserError, match=r"cat/pipe.png is not a regular file"):
        find_origin(str(tmp_path / "pets"), OriginOptions())
    (cat / "pipe.png").unlink()
    make_images(tmp_path / "splits" / "val")
    make_images(tmp_path / "splits" / "test")
    with pytest.raises(UserError, match="has test, val but no train"):
        find_origin(str(tmp_path / "splits"), OriginOptions())


@pytest.mark.parametrize("kind", ["PNG", "PPM", "TIFF"])
def test_grey_images_of_16_bits_are_scaled(kind: str, tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    for name in ("cat", "dog"):
        (tmp_path / "deep" / name).mkdir(parents=True)
        (tmp_path / "deep" / name / "0.png").write_bytes(png(ramp, kind))
    expected = np.round(ramp / 257).astype(np.uint8)
    for options in (OriginOptions(), OriginOptions(decode=True), OriginOptions(size="8x8")):
        origin = find_origin(str(tmp_path / "deep"), options)
        assert origin.fields[0].shape == [1, 8, 8]
        assert origin.notes[0].startswith("2 grey images of 16 bits, scaled to 8: ")
        train, validation = packed(origin, tmp_path / "p")
        np.testing.assert_array_equal(train.read("inputs", np.array([0]))[0, 0], expected)
        train.close()
        validation.close()
        shutil.rmtree(tmp_path / "p")


def test_images_of_several_frames_or_of_32_bits(tmp_path: Path) -> None:
    make_images(tmp_path / "pets")
    frames = [image_module.fromarray(np.full((6, 5, 3), i * 50, np.uint8)) for i in range(3)]
    frames[0].save(
        tmp_path / "pets" / "cat" / "moving.gif", save_all=True, append_images=frames[1:]
    )
    origin = find_origin(str(tmp_path / "pets"), OriginOptions())
    assert [note.split(": ")[0] for note in origin.notes] == [
        "1 images with several frames or pages; the first is packed"
    ]
    image_module.fromarray(np.ones((6, 5), np.float32)).save(tmp_path / "pets" / "cat" / "f.tiff")
    with pytest.raises(UserError, match=r"f.tiff is not an image: its pixels have 32 bits"):
        find_origin(str(tmp_path / "pets"), OriginOptions())


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_limit_of_pixels_that_is_none_is_refused(number: float, tmp_path: Path) -> None:
    """A command line made at random gave NaN, which was a traceback."""
    with pytest.raises(UserError, match=r"--max-megapixels .*: give a number above 0"):
        pack_data(str(tmp_path), tmp_path / "p", max_megapixels=number)
