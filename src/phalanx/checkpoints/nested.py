"""Nested Python values as JSON and tensors, and back: what programs keep, without pickle.

A dictionary with names as keys is a JSON object, a list a JSON array; every other type is an object
with one key that begins with `$`. Tensors and arrays are stored beside, by their path.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.checkpoints.tensor_file import CODES
from phalanx.errors import UserError

PLAIN = (type(None), bool, int, float, str)
DICTIONARIES: dict[str, type[dict[Any, Any]]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
}


class NestedEncoder:
    """Encodes values, and collects the tensors in them."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        """Tensors by path; in the program's own memory where they need no conversion."""

    def encode(self, value: object, path: str) -> Any:
        """Return what `json.dumps` takes.

        path: of the value, as a program writes it.
        Raises: UserError naming the path of a value of a type that cannot be stored.
        """
        try:
            return self._encode(value, path)
        except RecursionError:
            raise UserError(f"{path} is nested too deeply for a checkpoint") from None

    def _encode(self, value: object, path: str) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        match value:
            case Tensor() if kind in (Tensor, nn.Parameter):
                return {"$tensor": self._add(value.detach(), path)}
            case np.ndarray() | np.generic():
                tag = "$array" if kind is np.ndarray else "$scalar"
                return {tag: self._add(_from_numpy(np.asarray(value), path), path)}
            case complex():
                return {"$complex": [value.real, value.imag]}
            case list() | tuple() if kind in (list, tuple):
                items = [self._encode(item, f"{path}[{n}]") for n, item in enumerate(value)]
                return items if kind is list else {"$tuple": items}
            case dict() if kind in DICTIONARIES.values():
                return self._encode_dict(value, path)
        raise _unstorable(value, path)

    def _encode_dict(self, value: dict[Any, Any], path: str) -> Any:
        paths = {key: f"{path}[{key!r}]" for key in value}
        if type(value) is dict and all(type(k) is str and k[:1] != "$" for k in value):
            return {key: self._encode(item, paths[key]) for key, item in value.items()}
        pairs = [
            [self._encode_key(key, path), self._encode(item, paths[key])]
            for key, item in value.items()
        ]
        return {f"${type(value).__name__}": pairs}

    def _encode_key(self, key: object, path: str) -> Any:
        if type(key) is tuple:
            return {"$tuple": [self._encode_key(item, path) for item in key]}
        if type(key) in PLAIN:
            return key
        raise _unstorable(key, f"key {key!r} of {path}")

    def _add(self, tensor: Tensor, path: str) -> str:
        check_storable(tensor, path)
        self.tensors[path] = tensor
        return path


def check_storable(tensor: Tensor, path: str) -> None:
    """Raise UserError for a tensor that a file of a checkpoint cannot hold. path: for the error."""
    layout = "" if tensor.layout == torch.strided else f" {tensor.layout}"
    if layout or tensor.dtype not in CODES or tensor.is_meta:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{path} is a{layout} tensor of {kind}, which a checkpoint cannot hold")


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what `NestedEncoder.encode` was given, with parameters as plain tensors.

    Raises: KeyError, TypeError, ValueError for what it did not make.
    """
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if tag[:1] != "$":
        return {key: decode(item, tensors) for key, item in value.items()}
    content = value[tag]
    match tag:
        case "$tensor":
            return tensors[content].clone()  # its file may be removed
        case "$array":
            return tensors[content].clone().numpy()
        case "$scalar":
            return tensors[content].numpy()[()]
        case "$complex":
            return complex(*content)
        case "$tuple":
            return tuple(decode(item, tensors) for item in content)
    pairs = [(decode(key, tensors), decode(item, tensors)) for key, item in content]
    return DICTIONARIES[tag[1:]](pairs if tag != "$Counter" else dict(pairs))


def _from_numpy(array: np.ndarray[Any, Any], path: str) -> Tensor:
    try:
        return torch.from_numpy(np.array(array, order="C"))  # a copy: torch warns of read-only ones
    except TypeError:
        raise UserError(
            f"{path} is an array of {array.dtype}, which a checkpoint cannot hold"
        ) from None


def _unstorable(value: object, path: str) -> UserError:
    return UserError(
        f"{path} is of type {type(value).__name__}, which a checkpoint cannot hold: it holds "
        "tensors, NumPy arrays, numbers, strings, and lists, tuples and dictionaries of them"
    )
