"""Files of a checkpoint before they are written: their tensors are where training changes them, or
arrive from other ranks, until `SnapshotMemory` has copied them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from phalanx.checkpoints.manifest import StoredFile
from phalanx.checkpoints.tensor_file import (
    Spec,
    file_names,
    in_file_order,
    in_windows,
    write_stream,
)


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
