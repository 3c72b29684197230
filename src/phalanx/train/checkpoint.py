"""Saving and loading a model and its optimizer: safetensors and a manifest, never pickle."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import msgspec
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.errors import UserError
from phalanx.parallel.local_parts import whole
from phalanx.parallel.strategy import Strategy
from phalanx.train.manifest import (
    MANIFEST,
    Manifest,
    StoredFile,
    file_sha256,
    folder_of,
    read_manifest,
)

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer,
    manifest: Manifest,
    kept: Path | None = None,
) -> Path:
    """Write `folder/epoch-<n>`, or within an epoch `epoch-<n>-step-<m>`; by one rank.
    It is there whole or not at all.

    manifest: without its `files`, which are filled in here. kept: a folder whose files are part of
    it; it is gone afterwards.
    Raises: UserError when it cannot be written (a full disk); what was there before is untouched.
    """
    target = folder / folder_of(manifest)
    temporary = folder / f".{target.name}.{os.getpid()}"
    try:
        temporary.mkdir(parents=True)
        save_file(model_tensors(model), temporary / MODEL_FILE)
        save_file(optimizer_tensors(model, optimizer), temporary / OPTIMIZER_FILE)
        for file in kept.iterdir() if kept else ():
            file.rename(temporary / file.name)
        seal(temporary, target, manifest)
    except Exception as error:
        # safetensors reports a full disk by an exception of its own, which is no OSError
        shutil.rmtree(temporary, ignore_errors=True)
        raise unwritable(target, error) from error
    finally:
        if kept:
            shutil.rmtree(kept, ignore_errors=True)
    return target


def seal(temporary: Path, target: Path, manifest: Manifest) -> None:
    """Bring the files of `temporary` to the disk, describe them, and call the folder `target`."""
    files = {path.name: _sealed(path) for path in sorted(temporary.iterdir())}
    document = msgspec.structs.replace(manifest, files=files)
    (temporary / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))
    _sealed(temporary / MANIFEST)
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)
    _sync(target.parent)


def make_empty(folder: Path, strategy: Strategy) -> None:
    """For files of all ranks. Collective. Raises: OSError on rank 0."""
    if strategy.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        folder.mkdir(parents=True)
    strategy.barrier()


def unwritable(target: Path, error: Exception) -> UserError:
    return UserError(
        f"checkpoint {target} could not be written: {error}; "
        "earlier checkpoints are as they were: free some space, then go on with --resume"
    )


def load_checkpoint(
    checkpoint: Path, model: nn.Module, optimizer: Optimizer, rank: int = 0
) -> Manifest:
    """Put the checkpoint's values into `model` and `optimizer`, bit for bit.

    rank: that reads.
    Raises: UserError when a file is damaged or the tensors are not those of the model.
    """
    manifest = read_manifest(checkpoint, rank=rank)
    tensors = load_file(checkpoint / MODEL_FILE)
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise UserError(f"checkpoint {checkpoint} does not fit the model: {error}") from error
    _load_optimizer(load_file(checkpoint / OPTIMIZER_FILE), model, optimizer)
    return manifest


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items()}


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: `<parameter>:<quantity>`."""
    return {
        f"{name}:{quantity}": value.contiguous()
        for name, parameter in model.named_parameters()
        for quantity, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def _load_optimizer(tensors: dict[str, Tensor], model: nn.Module, optimizer: Optimizer) -> None:
    """In place where the optimizer has made its state already: ranks may share that memory, into
    which each of them then writes the same values."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, quantity = key.rsplit(":", 1)
        state = optimizer.state[parameters[name]]
        if quantity in state:
            state[quantity].copy_(value)
        else:
            state[quantity] = value.clone()


def _sealed(path: Path) -> StoredFile:
    """Bring the file to the disk and describe it."""
    _sync(path)
    return StoredFile(sha256=file_sha256(path), bytes=path.stat().st_size)


def _sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parameters_sha256(model: nn.Module) -> str:
    """One digest of all parameters, names and bytes: equal on ranks that hold the same model.
    Collective where they hold parts of it; of a pipeline's stages each has its own."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(whole(tensor).contiguous().numpy().tobytes())
    return digest.hexdigest()
