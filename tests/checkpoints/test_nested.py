"""Values that programs keep come back as they were, or are refused by their path."""

import json
import random
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from phalanx.checkpoints.nested import NestedEncoder, decode
from phalanx.checkpoints.tensor_file import Spec, TensorFile, read_specs, read_tensors
from phalanx.errors import UserError


def through_files(folder: Path, value: Any) -> Any:
    encoder = NestedEncoder()
    text = json.dumps(encoder.encode(value, "run.state"))
    TensorFile.of("tensors", encoder.tensors).write(folder)
    return decode(json.loads(text), read_tensors(folder / "tensors"))


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    value = {
        "numbers": [1, -(2**200), 0.1, float("inf"), -0.0, 1 + 2j, True, None, "$tensor"],
        "nested": {"a": [(1, (2.5,)), [], {}, ()], 3: "three", (1, "b"): None, "$x": {"$y": 1}},
        "ordered": OrderedDict([("z", 1), ("a", 2)]),
        "counter": Counter({30: 1, 60: 2}),
        "random": random.Random(1).getstate(),
        "generator": np.random.default_rng(1).bit_generator.state,
    }
    found = through_files(tmp_path, value)
    assert found == value
    assert repr(found) == repr(value), "types and the order of keys, too"


def test_tensors_and_arrays_come_back_bit_for_bit(tmp_path: Path) -> None:
    value = {
        "tensors": [
            torch.randn(3, 4, dtype=torch.float64).t(),
            torch.randn(2, 3, dtype=torch.complex64).conj(),
            torch.randn(5, dtype=torch.complex128)[::2],
            torch.tensor(3.5, dtype=torch.bfloat16),
            torch.zeros(0, 2, dtype=torch.int16),
            torch.tensor([True, False]),
            torch.get_rng_state(),
        ],
        "arrays": [
            np.arange(6, dtype=np.uint32).reshape(2, 3).T,
            np.array(2.5),
            np.ones(2, complex),
            np.float32(0.1),
            np.int64(7),
            np.bool_(True),
        ],
    }
    found = through_files(tmp_path, value)
    for there, here in zip(found["tensors"], value["tensors"], strict=True):
        assert there.dtype == here.dtype
        assert torch.equal(there, here)
    for there, here in zip(found["arrays"], value["arrays"], strict=True):
        assert type(there) is type(here) and there.dtype == here.dtype
        np.testing.assert_array_equal(there, here)


def test_a_parameter_comes_back_as_a_plain_tensor(tmp_path: Path) -> None:
    found = through_files(tmp_path, {"weight": nn.Parameter(torch.ones(2))})
    assert type(found["weight"]) is torch.Tensor and not found["weight"].requires_grad


def test_complex_tensors_are_real_views_in_the_file(tmp_path: Path) -> None:
    """Any reader of safetensors opens it."""
    TensorFile.of("file", {"z": torch.ones(3, dtype=torch.complex128)}).write(tmp_path)
    assert read_specs(tmp_path / "file") == {"z": Spec("C128", (3,))}
    assert b'"dtype":"F64","shape":[3,2]' in (tmp_path / "file").read_bytes()


Point = namedtuple("Point", "x")  # as a program may have one


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"ema": {"x": {1}}}, r"run\.state\['ema'\]\['x'\] is of type set"),
        ({"f": [0, print]}, r"run\.state\['f'\]\[1\] is of type builtin_function"),
        ({"p": Point(1)}, r"run\.state\['p'\] is of type Point"),
        ({"m": nn.Linear(1, 1)}, r"is of type Linear"),
        ({"a": np.array(["x"])}, r"run\.state\['a'\] is an array of <U1"),
        ({"a": np.array([None])}, r"an array of object"),
        ({"s": torch.eye(2).to_sparse()}, r"is a torch\.sparse_coo tensor of float32"),
        ({frozenset(): 1}, r"key frozenset\(\) of run\.state is of type frozenset"),
    ],
)
def test_what_cannot_be_stored_is_named_by_its_path(value: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        NestedEncoder().encode(value, "run.state")
    assert "\n" not in str(caught.value)


def test_a_value_within_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UserError, match=r"run\.state is nested too deeply"):
        NestedEncoder().encode(value, "run.state")
