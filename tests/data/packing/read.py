"""Helpers for tests of origins."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phalanx.data.packed.pack import Pack
from phalanx.data.packing.origin import Origin
from phalanx.data.packing.run import PackingOptions, pack

RANDOM = np.random.default_rng(0)


def everything(origin: Origin) -> tuple[list[Any], NDArray[Any]]:
    """Inputs and targets of all samples, in their order."""
    numbers = np.arange(sum(map(len, origin.chunks)))
    content = origin.read(numbers)
    if isinstance(content, list):
        inputs, targets = ([sample[name] for sample in content] for name in ("inputs", "targets"))
        return inputs, np.array(targets)
    return list(content["inputs"]), content["targets"]


def packed(origin: Origin, folder: Path) -> tuple[Pack, Pack]:
    pack(origin, folder, PackingOptions(validation=0.25))
    return Pack(folder / "train"), Pack(folder / "validation")


def png(pixels: NDArray[np.uint8], kind: str = "PNG") -> bytes:
    image_module = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image_module.fromarray(pixels).save(file, kind)
    return file.getvalue()
