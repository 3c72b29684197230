"""Check for samples whose inputs are not finite, which would make training fail late."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.shard_writers import Rows, Sample
from phalanx.data.packing.split import Numbers
from phalanx.errors import UserError


def check_finite(samples: Rows | list[Sample], numbers: Numbers, source: str) -> None:
    """numbers: of the samples in their source, for the message.

    Raises: UserError naming the first sample whose inputs hold NaN or infinity.
    """
    if isinstance(samples, list):
        is_finite = [_is_finite(sample["inputs"]) for sample in samples]
        row = next((i for i, finite in enumerate(is_finite) if not finite), None)
    else:
        row = _first_row(samples["inputs"])
    if row is not None:
        raise UserError(
            f"{source}: the inputs of sample {numbers[row]}, counted from 0, are not all finite "
            "numbers\nmend that sample, or leave it out"
        )


def _is_finite(part: NDArray[Any] | bytes) -> bool:
    if isinstance(part, bytes) or part.dtype.kind != "f":
        return True
    return bool(np.isfinite(part).all())


def _first_row(rows: NDArray[Any]) -> int | None:
    if _is_finite(rows):
        return None
    return int(np.argmin(np.isfinite(rows).reshape(len(rows), -1).all(1)))
