"""Files of a checkpoint. Safetensors are written one tensor at a time: no rank needs memory for all
of them. Until `SnapshotMemory` has copied them, they are where training changes them, or arrive
from other ranks.

The order of the tensors depends on their types and names alone: equal tensors make equal files,
whoever holds them. Format: an 8-byte length, a JSON header, the tensors' bytes one after the other
(https://huggingface.co/docs/safetensors). A complex tensor, for which not every reader has a type,
is stored as its real view, (…, 2), and named in the header's metadata.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from phalanx.checkpoints.manifest import StoredFile
from phalanx.errors import UserError

FILE_BYTES = 1 << 30
"""Most bytes of the tensors of a file, but one tensor may have more: what one rank writes, and has
room for, while others write the next."""

CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.complex128: "C128", torch.complex64: "C64",
}  # fmt: skip
DTYPES = {code: dtype for dtype, code in CODES.items()}
_REAL = {"C128": "F64", "C64": "F32"}
_COMPLEX = "complex"
"""Key of the metadata: names of complex tensors, as a JSON list."""


class Spec(NamedTuple):
    """A tensor without its values."""

    code: str
    """Name of its dtype in safetensors."""
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Spec:
        """Raises: UserError for a type that has no code."""
        if tensor.dtype not in CODES:
            raise UserError(f"a checkpoint cannot hold tensors of {tensor.dtype}")
        return cls(CODES[tensor.dtype], tuple(tensor.shape))

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.code]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.dtype.itemsize


def in_file_order(specs: Mapping[str, Spec]) -> list[str]:
    """Return the names, widest types first, so that every tensor is aligned."""
    return sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))


def in_windows(specs: Mapping[str, Spec], names: Iterable[str]) -> list[list[str]]:
    """Divide tensors, in this order, into windows of `FILE_BYTES` at most, or of one tensor."""
    windows: list[list[str]] = [[]]
    num_bytes = 0
    for name in names:
        if windows[-1] and num_bytes + specs[name].num_bytes > FILE_BYTES:
            windows.append([])
            num_bytes = 0
        windows[-1].append(name)
        num_bytes += specs[name].num_bytes
    return windows


def file_names(name: str, number: int) -> list[str]:
    """Return the names of the files that hold the tensors of `name`, as transformers has them."""
    if number == 1:
        return [name]
    stem, _, ending = name.rpartition(".")
    return [f"{stem}-{each:05d}-of-{number:05d}.{ending}" for each in range(1, number + 1)]


def stored_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a checkpoint that hold the tensors of `name`, in their order."""
    stem, _, ending = name.rpartition(".")
    return (
        [folder / name] if (folder / name).exists() else sorted(folder.glob(f"{stem}-*.{ending}"))
    )


def write_stream(
    path: Path,
    specs: Mapping[str, Spec],
    tensors: Iterable[Tensor],
    metadata: Mapping[str, str] | None = None,
) -> StoredFile:
    """Write a file, and return its size and hash, of what was meant to be written.

    tensors: of `specs`, in the order of `in_file_order`; each is asked for when it is due.
    """
    words = dict(metadata or {})
    if complex_names := sorted(name for name, spec in specs.items() if spec.code in _REAL):
        words[_COMPLEX] = json.dumps(complex_names)
    header: dict[str, object] = {"__metadata__": words} if words else {}
    end = 0
    for name in in_file_order(specs):
        start, end = end, end + specs[name].num_bytes
        header[name] = {
            "dtype": _REAL.get(specs[name].code, specs[name].code),
            "shape": (*specs[name].shape, *((2,) if specs[name].code in _REAL else ())),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(head)
    with path.open("wb") as file:
        file.write(head)
        for tensor in tensors:
            values = raw(plain_values(tensor).cpu()).numpy().data
            digest.update(values)
            file.write(values)
    return StoredFile(sha256=digest.hexdigest(), bytes=len(head) + end)


def read_tensors(*paths: Path) -> dict[str, Tensor]:
    """Return all tensors of files."""
    tensors: dict[str, Tensor] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            names = _complex_names(file)
        for name, tensor in load_file(path).items():
            tensors[name] = torch.view_as_complex(tensor) if name in names else tensor
    return tensors


def read_specs(*paths: Path) -> dict[str, Spec]:
    """Return the types and shapes of the tensors of files. Cost: their headers are read."""
    specs = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            names = _complex_names(file)
            keys: Iterable[str] = file.keys()
            for name in keys:
                part = file.get_slice(name)
                code, shape = part.get_dtype(), tuple(part.get_shape())
                if name in names:
                    code, shape = {real: c for c, real in _REAL.items()}[code], shape[:-1]
                specs[name] = Spec(code, shape)
    return specs


def _complex_names(file: Any) -> set[str]:
    return set(json.loads((file.metadata() or {}).get(_COMPLEX, "[]")))


def plain_values(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor of the values, which views of complex ones may conjugate."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def raw(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor, (n,) uint8, on the same memory."""
    return tensor.reshape(-1).view(torch.uint8)


@dataclass(frozen=True)
class TensorFile:
    """A file of tensors, in the format of safetensors."""

    name: str
    specs: Mapping[str, Spec]
    tensors: Iterable[Tensor]
    """Tensors in the order of `in_file_order(specs)`; each is asked for when it is due, once."""
    metadata: Mapping[str, str] | None = None

    @classmethod
    def of(cls, name: str, tensors: Mapping[str, Tensor]) -> TensorFile:
        """Return the file of tensors that are all here."""
        specs = {key: Spec.of(tensor) for key, tensor in tensors.items()}
        return cls(name, specs, [tensors[key] for key in in_file_order(specs)])

    @classmethod
    def all_of(cls, name: str, tensors: Mapping[str, Tensor]) -> list[TensorFile]:
        """Return the files of tensors that are all here, as many as their size asks for."""
        specs = {key: Spec.of(tensor) for key, tensor in tensors.items()}
        windows = in_windows(specs, in_file_order(specs))
        return [
            cls.of(own, {key: tensors[key] for key in window})
            for own, window in zip(file_names(name, len(windows)), windows, strict=True)
        ]

    def write(self, folder: Path) -> StoredFile:
        """Write the file into the folder of a new checkpoint. Raises: OSError."""
        return write_stream(folder / self.name, self.specs, self.tensors, self.metadata)


@dataclass(frozen=True)
class TextFile:
    """A file of text."""

    name: str
    text: str

    def write(self, folder: Path) -> StoredFile:
        """Write the file into the folder of a new checkpoint. Raises: OSError."""
        content = self.text.encode()
        (folder / self.name).write_bytes(content)
        return StoredFile(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


@dataclass(frozen=True)
class SentParts:
    """This rank's parts of a file that another rank writes, in its place among the files."""

    send: Callable[[], object]
    """Sends them. Collective."""


CheckpointFile = TensorFile | TextFile | SentParts


def write_files(files: Iterable[CheckpointFile], folder: Path) -> dict[str, StoredFile]:
    """Write files into the folder of a new checkpoint, in their order, and send the parts that
    other ranks write. Raises: OSError."""
    stored = {}
    for file in files:
        if isinstance(file, SentParts):
            file.send()
        else:
            stored[file.name] = file.write(folder)
    return stored


class SnapshotMemory:
    """Memory for one copy of the tensors of a checkpoint, used again for the next."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, str], Tensor] = {}

    def copy(self, files: Iterable[CheckpointFile]) -> list[CheckpointFile]:
        """Return the same files with tensors of this memory, which the next call overwrites; parts
        of those that other ranks write are sent."""
        copies: list[CheckpointFile] = []
        for each in files:
            if isinstance(each, SentParts):
                each.send()
            else:
                copies.append(each if isinstance(each, TextFile) else self._copy(each))
        return copies

    def _copy(self, file: TensorFile) -> TensorFile:
        names = in_file_order(file.specs)
        copies = [
            self._copy_tensor((file.name, name), tensor)
            for name, tensor in zip(names, file.tensors, strict=True)
        ]
        return replace(file, tensors=copies)

    def _copy_tensor(self, key: tuple[str, str], tensor: Tensor) -> Tensor:
        memory = self._memory.get(key)
        if memory is None or (memory.shape, memory.dtype) != (tensor.shape, tensor.dtype):
            memory = self._memory[key] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        with torch.no_grad():
            return memory.copy_(tensor.detach())
