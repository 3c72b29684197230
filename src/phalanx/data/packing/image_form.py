"""Form in which images are packed: their files unchanged, or arrays of one size."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.decode import (
    MAX_PIXELS,
    MODES,
    channels_of,
    decode_image,
    has_16_bits,
    in_8_bits,
    opened_image,
    pillow,
)
from phalanx.data.packed.index import Encoding, Field
from phalanx.data.packing.options import OriginOptions
from phalanx.data.packing.table import CountedItems
from phalanx.errors import UserError
from phalanx.records.regular_file import readable

KEPT = ("PNG", "JPEG")
"""Formats whose files are packed as they are; others become PNG."""


_FRAMES = "images with several frames or pages; the first is packed"
_WITH_FRAMES = ("GIF", "PNG", "TIFF", "WEBP")


class Peek(NamedTuple):
    """Header of an image: format, channels, size."""

    where: str
    kind: str
    channels: int
    height: int
    width: int
    has_16_bits: bool = False
    num_frames: int = 1


@dataclass(frozen=True, kw_only=True)
class ImageForm:
    field: Field
    size: tuple[int, int] | None = None
    """(height, width) that images are brought to."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """Lines on images that are not packed as they are."""

    def packed(self, image: bytes | Path, where: str) -> bytes | NDArray[np.uint8]:
        """Return the packed form of an image's file. Decodes every image, so packs are readable.

        Raises: UserError naming `where` when it is no image.
        """
        content = image if isinstance(image, bytes) else _content(image)
        channels = self.field.shape[0] if self.field.shape else None
        if self.size is not None:
            content = _resized(content, where, self.size)
        pixels = decode_image(content, channels, where)
        if self.field.encoding == "raw":
            return pixels
        return content if _kind(content) in KEPT else _as_png(pixels)


def choose_form(name: str, images: Iterable[Peek], options: OriginOptions) -> ImageForm:
    """The form that suits all of them: grey where all are, of one shape where all are.

    Raises: UserError when they are to be decoded and differ in size.
    """
    first: Peek | None = None
    other: Peek | None = None
    too_large: Peek | None = None
    channels, num_png, num_images = 1, 0, 0
    otherwise = CountedItems()
    for image in images:
        if image.has_16_bits:
            otherwise.add("grey images of 16 bits, scaled to 8", image.where)
        if image.num_frames > 1:
            otherwise.add(_FRAMES, image.where)
        first = first or image
        if image.height * image.width > MAX_PIXELS:
            too_large = too_large or image
        if (image.height, image.width) != (first.height, first.width):
            other = other or image
        channels = max(channels, image.channels)
        num_png += image.kind != "JPEG"
        num_images += 1
    if first is None:
        raise UserError("there are no images to pack")
    height, width = options.image_size or (first.height, first.width)
    if options.size or options.decode:
        if other is not None and options.size is None:
            raise UserError(
                f"images differ in size: {first.where} is {first.height}×{first.width}, "
                f"{other.where} {other.height}×{other.width}\nresize them with --size, for example "
                "--size 224x224"
            )
        field = Field(name=name, dtype="uint8", shape=[channels, height, width])
        return ImageForm(field=field, size=options.image_size, notes=otherwise.lines())
    if too_large is not None:
        raise UserError(
            f"{too_large.where} has {too_large.height * too_large.width:,} pixels, more than "
            "training can read from a file\npack smaller arrays with --size"
        )
    encoding: Encoding = "png" if 2 * num_png > num_images else "jpeg"
    shape = None if other else [channels, height, width]
    field = Field(name=name, dtype="uint8", shape=shape, encoding=encoding)
    return ImageForm(field=field, notes=otherwise.lines())


def peek(content: bytes | Path, where: str) -> Peek:
    """Read the header of an image's file. Raises: UserError naming `where` when it is no image."""
    with (
        io.BytesIO(content) if isinstance(content, bytes) else _opened(content) as file,
        opened_image(file, where) as image,
    ):
        frames = image.n_frames if image.format in _WITH_FRAMES else 1
        size = channels_of(image), image.height, image.width
        return Peek(where, str(image.format), *size, has_16_bits(image), frames)


def _opened(path: Path) -> IO[bytes]:
    with readable(path):
        return path.open("rb")


def _content(path: Path) -> bytes:
    with _opened(path) as file, readable(path):
        return file.read()


def _resized(content: bytes, where: str, size: tuple[int, int]) -> bytes:
    with opened_image(io.BytesIO(content), where) as image:
        even = in_8_bits(image).convert(MODES[channels_of(image)])
        smaller = even.resize(size[::-1], pillow().Resampling.BILINEAR)
    file = io.BytesIO()
    smaller.save(file, "BMP")  # lossless, and quick to write
    return file.getvalue()


def _kind(content: bytes) -> str:
    if content.startswith(b"\x89PNG"):
        return "PNG"
    return "JPEG" if content.startswith(b"\xff\xd8\xff") else ""


def _as_png(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    image = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    pillow().fromarray(np.ascontiguousarray(image)).save(file, "PNG")
    return file.getvalue()
