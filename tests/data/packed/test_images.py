"""Images are decoded as they are read, and what is none is damage."""

import io
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packed.index import Field
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.part_reader import DamagedError
from phalanx.data.packed.writer import PackWriter

image_module = pytest.importorskip("PIL.Image")
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 6, 4, 3)).astype(np.uint8)


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image_module.fromarray(pixels).save(file, kind)
    return file.getvalue()


def write(path: Path, images: list[bytes], shape: list[int] | None) -> None:
    field = Field(name="inputs", dtype="uint8", shape=shape, encoding="png")
    with PackWriter(path, fields=[field], shard_bytes=4000) as writer:
        for image in images:
            writer.add({"inputs": image})


def test_images_of_one_shape(tmp_path: Path) -> None:
    images = [encoded(image) for image in PIXELS]
    write(tmp_path / "p", images, [3, 6, 4])
    pack = Pack(tmp_path / "p")
    order = np.array([3, 0, 4, 4])
    expected = PIXELS.transpose(0, 3, 1, 2)[order]
    np.testing.assert_array_equal(pack.read("inputs", order), expected)
    assert pack.read_bytes("inputs", order) == [images[i] for i in order]
    pack.close()


def test_images_of_several_shapes(tmp_path: Path) -> None:
    others = [PIXELS[0], PIXELS[1][:3], np.ascontiguousarray(PIXELS[2][..., 0])]
    write(tmp_path / "p", [encoded(image) for image in others], None)
    pack = Pack(tmp_path / "p")
    shapes = [image.shape for image in pack.read_each("inputs", np.arange(3))]
    assert shapes == [(3, 6, 4), (3, 3, 4), (1, 6, 4)]
    with pytest.raises(ValueError, match="differ in shape: use read_each"):
        pack.read("inputs", np.arange(3))
    pack.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(b"hello", "is not an image"), (encoded(PIXELS[0][:3]), r"is an image of \(3, 3, 4\), not")],
)
def test_what_is_no_such_image(wrong: bytes, message: str, tmp_path: Path) -> None:
    write(tmp_path / "p", [encoded(PIXELS[0]), wrong, encoded(PIXELS[2])], [3, 6, 4])
    pack = Pack(tmp_path / "p")
    with pytest.raises(DamagedError, match=f"sample 1 at byte .* {message}"):
        pack.read("inputs", np.arange(3))
    pack.close()
    pack = Pack(tmp_path / "p", damaged="skip")
    got = pack.read("inputs", np.arange(3))
    assert not got[1].any()
    np.testing.assert_array_equal(got[2], PIXELS[2].transpose(2, 0, 1))
    assert pack.damaged_of(np.arange(3)).tolist() == [False, True, False]
    pack.close()
