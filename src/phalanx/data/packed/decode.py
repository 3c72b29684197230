"""Images as arrays, channels first."""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import UserError

_MODES = {1: "L", 3: "RGB"}


def decode_image(content: bytes, num_channels: int | None = None) -> NDArray[np.uint8]:
    """(channels, height, width) of a PNG, JPEG or another image that Pillow reads.

    num_channels: 1 for grey, 3 for colours; None: as the image is, colours unless it is grey.
    Raises: ValueError, in words, when it is no image or a bomb; UserError without Pillow.
    """
    image_module = pillow()
    try:
        with image_module.open(io.BytesIO(content)) as image:
            channels = num_channels or (1 if image.mode in ("1", "L") else 3)
            pixels = np.asarray(image.convert(_MODES[channels]))
    except (OSError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
        raise ValueError(f"is not an image: {error}") from error
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


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
