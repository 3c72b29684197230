"""Detection of a source by its name or its files; IDX files and known data."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
from phalanx.errors import UserError
from tests.data.packing.read import RANDOM, everything


def write_idx(path: Path, array: NDArray[Any]) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def test_idx_pairs(tmp_path: Path) -> None:
    images = RANDOM.integers(0, 256, (7, 4, 5)).astype(np.uint8)
    labels = np.array([0, 1, 2, 0, 1, 2, 0], np.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte", images[:5])
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", labels[:5])
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images[5:])
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", labels[5:])
    origin = find_origin(str(tmp_path), OriginOptions())
    inputs, targets = everything(origin)
    np.testing.assert_array_equal(np.array(inputs), images[:, None])
    assert targets.tolist() == labels.tolist()
    assert origin.classes == ["0", "1", "2"]
    assert origin.validation is not None
    assert origin.validation.tolist() == [5, 6]
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte.gz has no counterpart"):
        find_origin(str(tmp_path), OriginOptions())
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", labels[:1])
    with pytest.raises(UserError, match=r"has 2 images, .* 1 labels"):
        find_origin(str(tmp_path), OriginOptions())


def test_what_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no nowhere: use a file, a folder, or one of"):
        find_origin("nowhere", OriginOptions())
    with pytest.raises(UserError, match="is of no known kind"):
        find_origin(str(tmp_path), OriginOptions())
    with pytest.raises(UserError, match="is a folder: use a file of kind csv"):
        find_origin(str(tmp_path), OriginOptions(kind="csv"))
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="is of no known kind"):
        find_origin(str(tmp_path / "letter.txt"), OriginOptions())


def test_text_is_packed_by_name(tmp_path: Path) -> None:
    origin = find_origin("text", OriginOptions())
    inputs, targets = everything(origin)
    assert inputs[0].shape == targets[0].shape == (64,)
    np.testing.assert_array_equal(inputs[0][1:], targets[0][:-1])


def test_options_of_other_sources(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(
        UserError, match="--size is for images in folders, tables and records, not for"
    ):
        find_origin(str(tmp_path / "t.csv"), OriginOptions(target="b", size="2x2"))
    with pytest.raises(UserError, match="--decode is for images"):
        find_origin("digits", OriginOptions(decode=True))
    with pytest.raises(UserError, match="--target label: idx has no columns"):
        find_origin(str(tmp_path), OriginOptions(kind="idx", target="label"))
