"""Writer of safetensors, one tensor at a time, so that no rank needs memory for all of them.

The order of the tensors depends on their types and names alone: equal tensors make equal files,
whoever holds them. Format: an 8-byte length, a JSON header, the tensors' bytes one after the other
(https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
DTYPES = {code: dtype for dtype, code in CODES.items()}


class Spec(NamedTuple):
    """A tensor without its values."""

    code: str
    """Of its dtype, as safetensors has it."""
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Spec:
        return cls(CODES[tensor.dtype], tuple(tensor.shape))

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.code]

    @property
    def num_elements(self) -> int:
        number = 1
        for size in self.shape:
            number *= size
        return number

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.dtype.itemsize


def in_file_order(specs: Mapping[str, Spec]) -> list[str]:
    """Return the names, widest types first, so that every tensor is aligned."""
    return sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors that are all here."""
    specs = {name: Spec.of(tensor) for name, tensor in tensors.items()}
    write_stream(path, specs, (tensors[name] for name in in_file_order(specs)))


def write_stream(
    path: Path,
    specs: Mapping[str, Spec],
    tensors: Iterable[Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """tensors: of `specs`, in the order of `in_file_order`; each is asked for when it is due."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in in_file_order(specs):
        start, end = end, end + specs[name].num_bytes
        header[name] = {
            "dtype": specs[name].code,
            "shape": specs[name].shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            file.write(raw(tensor.detach().contiguous()).numpy().data)


def raw(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor, (n,) uint8, on the same memory."""
    return tensor.reshape(-1).view(torch.uint8)
