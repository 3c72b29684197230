"""Files of a checkpoint before they are written: their tensors are where training changes them, or
arrive from other ranks, until `SnapshotMemory` has copied them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from phalanx.checkpoints.tensor_file import Spec, in_file_order, write_stream


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

    def write(self, folder: Path) -> None:
        """Write the file into the folder of a new checkpoint. Raises: OSError."""
        write_stream(folder / self.name, self.specs, self.tensors, self.metadata)


@dataclass(frozen=True)
class TextFile:
    """A file of text."""

    name: str
    text: str

    def write(self, folder: Path) -> None:
        """Write the file into the folder of a new checkpoint. Raises: OSError."""
        (folder / self.name).write_text(self.text)


CheckpointFile = TensorFile | TextFile


class SnapshotMemory:
    """Memory for one copy of the tensors of a checkpoint, used again for the next."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, str], Tensor] = {}

    def copy(self, files: Iterable[CheckpointFile]) -> list[CheckpointFile]:
        """Return the same files with tensors of this memory, which the next call overwrites."""
        return [each if isinstance(each, TextFile) else self._copy(each) for each in files]

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
