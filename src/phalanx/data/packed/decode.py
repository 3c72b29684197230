"""Images as arrays, channels first."""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import UserError

MODES = {1: "L", 3: "RGB"}
_WITH_16_BITS = ("PNG", "PPM")
"""Formats whose grey images of 16 bits Pillow may give as numbers of 32 bits, its mode I."""

LARGER = "\nto pack it anyway, scale it down: --max-megapixels N --size HEIGHTxWIDTH"
"""Remedy for images that Pillow takes for bombs."""

MAX_PIXELS = 2 * 89_478_485
"""Most pixels of an image that Pillow opens unasked."""

_IMAGE_ERRORS = (
    *(OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, MemoryError),
    *(IndexError, KeyError, TypeError, AttributeError, OverflowError, ZeroDivisionError),
)
"""Pillow's answers to damaged files."""


def decode_image(
    content: bytes, num_channels: int | None = None, where: str | None = None
) -> NDArray[np.uint8]:
    """(channels, height, width) of a PNG, JPEG or another image that Pillow reads.

    num_channels: 1 for grey, 3 for colours; None: as the image is, colours unless it is grey.
    Raises: ValueError, in words, when it is no image or a bomb; UserError that names `where`, if
            given, in its place, and without Pillow.
    """
    with opened_image(io.BytesIO(content), where) as image:
        channels = num_channels or channels_of(image)
        pixels = np.asarray(in_8_bits(image).convert(MODES[channels]))
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


@contextmanager
def opened_image(file: Any, where: str | None = None) -> Iterator[Any]:
    """Open an image with Pillow; `file` is open for reading.

    Raises: ValueError, in words, when it is no image or a bomb, found out by opening it or in the
            block; UserError that begins with `where`, if given, in its place.
    """
    image_module = pillow()
    try:
        with image_module.open(file) as image:
            yield image
    except image_module.DecompressionBombError as error:
        # Pillow's own text goes on: "could be decompression bomb DOS attack."
        fault = f"has too many pixels: {str(error).partition(',')[0]}{LARGER}"
        raise UserError(f"{where} {fault}") if where else ValueError(fault) from error
    except _IMAGE_ERRORS as error:
        # Pillow's own text has the address of the object that held the file.
        is_unknown = isinstance(error, image_module.UnidentifiedImageError)
        fault = f"is not an image: {'its format is unknown' if is_unknown else error}"
        raise UserError(f"{where} {fault}") if where else ValueError(fault) from error


def channels_of(image: Any) -> int:
    """Return 1 for a grey image of Pillow, else 3."""
    return 1 if image.mode in ("1", "L", "I", "F") or has_16_bits(image) else 3


def has_16_bits(image: Any) -> bool:
    """Return whether a grey image of Pillow has 16 bits a pixel.

    Raises: ValueError when it has 32, whose range nobody knows.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in _WITH_16_BITS):
        return True
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits; convert them to 8 or 16")
    return False


def in_8_bits(image: Any) -> Any:
    """Return an image of Pillow, grey of 16 bits scaled to 8: converted, it would be cut at 255.

    Raises: ValueError when it has 32 bits a pixel.
    """
    if not has_16_bits(image):
        return image
    deep = np.asarray(image).astype(np.uint32)
    return pillow().fromarray(((np.minimum(deep, 65535) * 255 + 32767) // 65535).astype(np.uint8))


def allow_megapixels(number: float) -> None:
    """Let this process open images of up to so many megapixels.

    Raises: UserError for no finite number above 0.
    """
    if not 0 < number < math.inf:
        raise UserError(f"--max-megapixels {number:g}: give a number above 0, such as 200")
    pillow().MAX_IMAGE_PIXELS = int(number * 1e6 / 2)  # twice as many are an error


def pillow() -> Any:
    """The module PIL.Image.

    Raises: UserError when Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise UserError(
            "images need Pillow, which is not installed: pip install 'phalanx[data]'"
        ) from None
    module: ModuleType = Image
    return module
