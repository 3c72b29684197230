"""Samples that a Python function makes."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packed.pack import Pack
from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
from phalanx.data.packing.run import PackingOptions, pack
from phalanx.errors import UserError
from tests.data.packing.read import everything, packed, png

PROGRAM = """
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch


class Molecule(NamedTuple):
    places: np.ndarray
    energy: float


@dataclass
class Unused:
    number: int


def pairs():
    for i in range(9):
        yield np.full((2, 3), i, ">f4"), i / 8


def molecules():
    return [Molecule(np.full((i % 3 + 1, 3), i), i / 8) for i in range(9)]


def volumes():
    for i in range(9):
        mask = torch.full((2, 2, 2), i % 2, dtype=torch.uint8)
        yield {"inputs": torch.full((1, 2, 2, 2), i / 8), "targets": mask}


def words():
    for i in range(9):
        yield {"inputs": i, "targets": "ab"[i % 2]}


class Rows:
    def __len__(self):
        return 9

    def __getitem__(self, number):
        if number > 8:
            raise IndexError
        return number, -number


rows = Rows()


def dies():
    yield {"x": 1}
    raise KeyError("two")


def text():
    yield {"x": "one"}


def nothing():
    yield from ()


def ragged():
    yield {"x": [[1], [2, 3]]}


def three():
    yield 1, 2, 3


def other_dtype():
    yield {"x": 1}
    yield {"x": 1.5}


def other_fields():
    yield {"x": 1}
    yield {"y": 1}


def not_finite():
    for i in range(9):
        yield {"inputs": 1.0, "targets": np.array([1.0, np.nan if i == 4 else 1.0])}


def number():
    return 7


def images():
    for content in IMAGES:
        yield {"inputs": content, "targets": 1}
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "my_data.py"
    path.write_text(PROGRAM + f"\nIMAGES = [{png(np.zeros((4, 5), np.uint8))!r}] * 9\n")
    return str(path)


def test_inputs_and_quantities(program: str, tmp_path: Path) -> None:
    origin = find_origin(f"{program}:pairs", OriginOptions())
    inputs, targets = everything(origin)
    assert [part[0, 0] for part in inputs] == list(range(9))
    assert (targets.dtype, targets.tolist()) == (np.float64, [i / 8 for i in range(9)])
    train, validation = packed(origin, tmp_path / "p")
    assert (train.num_samples, validation.num_samples) == (7, 2)
    assert (train.fields["inputs"].dtype, train.fields["inputs"].shape) == ("float32", [2, 3])
    assert (train.fields["targets"].mean, train.index.classes) == (None, [])
    again = find_origin(f"{program}:pairs", OriginOptions())
    assert again.fingerprint == origin.fingerprint
    origin.close()
    again.close()


def test_fields_by_name_of_any_shape(program: str, tmp_path: Path) -> None:
    origin = find_origin(f"{program}:molecules", OriginOptions())
    pack(origin, tmp_path / "p", PackingOptions(validation=0))
    origin.close()
    read = Pack(tmp_path / "p" / "train")
    energies = read.read("energy", np.arange(9))
    for energy, places in zip(energies, read.read_each("places", np.arange(9)), strict=True):
        number = round(energy * 8)
        assert places.tolist() == [[number] * 3] * (number % 3 + 1)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "classes"),
    [
        ("volumes", "uint8", [2, 2, 2], []),
        ("words", "int64", [], ["a", "b"]),
        ("rows", "int64", [], []),
        ("images", "int64", [], []),
    ],
)
def test_targets(name: str, dtype: str, shape: list[int], classes: list[str], program: str) -> None:
    origin = find_origin(f"{program}:{name}", OriginOptions())
    field = next(field for field in origin.fields if field.name == "targets")
    assert (field.dtype, field.shape, origin.classes) == (dtype, shape, classes)
    assert len(everything(origin)[1]) == 9
    origin.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dies", r"my_data.py:dies, sample 1: KeyError: 'two'\n.*my_data.py, line \d+, in dies"),
        ("text", "sample 0, 'x': the text 'one' is not an array of numbers"),
        ("nothing", "my_data.py:nothing has no samples"),
        ("ragged", "sample 0, field 'x': an object of type list is not an array"),
        ("three", "sample 0: a tuple of 3: give a tuple of two"),
        ("other_dtype", "sample 1, field 'x': it has float64, but sample 0 has int64"),
        ("other_fields", "sample 1: its fields are y, those of sample 0 x"),
        ("number", "my_data.py:number gives an object of type int: it must yield samples"),
        ("missing", "missing: there is no such name; there are Molecule, Unused, pairs, molecules"),
        ("not_finite", "not_finite: the targets of sample 4, counted from 0, are not all finite"),
    ],
)
def test_mistakes_are_named(name: str, text: str, program: str, tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=text),
        closing(find_origin(f"{program}:{name}", OriginOptions())) as origin,
    ):
        pack(origin, tmp_path / "p", PackingOptions())


def test_programs_that_do_not_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"samples: there is no file .*none\.py"):
        find_origin(f"{tmp_path}/none.py:samples", OriginOptions())
    (tmp_path / "wrong.py").write_text("x = 1\nimport no_such_library\n")
    with pytest.raises(UserError, match=r"ModuleNotFoundError: No .*\n.*wrong\.py, line 2"):
        find_origin(f"{tmp_path}/wrong.py:samples", OriginOptions())
    (tmp_path / "right.py").write_text("rows = [1, 2]")
    with pytest.raises(UserError, match="--target y: function has no columns"):
        find_origin(f"{tmp_path}/right.py:rows", OriginOptions(target="y"))
