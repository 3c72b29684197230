"""Checkpoints of a model that no rank holds whole: written and read by all ranks together.

The files are those of any other checkpoint, whole tensors by the parameter's name, so that one
that four ranks wrote can go on under any strategy and on any number of ranks. Each rank writes its
parts through torch.distributed.checkpoint's storage of safetensors, and rank 0 joins them; nobody
needs more memory than its parts. The folder must be one that all ranks see.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from phalanx.errors import UserError
from phalanx.parallel.local_parts import local, placed_like
from phalanx.parallel.strategy import Strategy
from phalanx.train.checkpoint import MODEL_FILE, OPTIMIZER_FILE, make_empty, seal, unwritable
from phalanx.train.manifest import Manifest, folder_of, read_manifest

JOINED = "model-00001-of-00001.safetensors"
"""What the storage calls the file of all parts."""


def save_together(folder: Path, strategy: Strategy, manifest: Manifest) -> Path:
    """Write `folder/epoch-<n>`, or within an epoch `epoch-<n>-step-<m>`; collective.
    It is there whole or not at all.

    manifest: without its `files`, which are filled in here.
    Raises: UserError when it cannot be written; what was there before is untouched.
    """
    target = folder / folder_of(manifest)
    temporary = folder / f".{target.name}.parts"
    try:
        make_empty(temporary, strategy)
        _write(model_parts(strategy), temporary / "model", strategy)
        _write(optimizer_parts(strategy), temporary / "optimizer", strategy)
        if strategy.rank == 0:
            for file in (MODEL_FILE, OPTIMIZER_FILE):
                parts = temporary / Path(file).stem
                (parts / JOINED).rename(temporary / file)
                shutil.rmtree(parts)
            seal(temporary, target, manifest)
        strategy.barrier()
    except Exception as error:
        raise unwritable(target, error) from error
    return target


def load_together(checkpoint: Path, strategy: Strategy) -> Manifest:
    """Put into each rank's parts what belongs there, bit for bit; no rank reads more. Needs no
    message: every rank reads for itself.

    Raises: UserError when a file is damaged or the tensors are not those of the model.
    """
    manifest = read_manifest(checkpoint)
    model, found = model_parts(strategy), _shapes(checkpoint / MODEL_FILE)
    for name, tensor in model.items():
        if found.get(name) != tuple(tensor.shape):
            raise UserError(
                f"checkpoint {checkpoint} does not fit the model: {name} is of shape "
                f"{found.get(name, 'none')} there, and of {tuple(tensor.shape)} here"
            )
    wanted = {**model, **_empty_state(_shapes(checkpoint / OPTIMIZER_FILE), strategy)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as is meant
        load(wanted, storage_reader=HuggingFaceStorageReader(str(checkpoint)), no_dist=True)
    return manifest


def model_parts(strategy: Strategy) -> dict[str, Tensor]:
    """What this rank holds of the parameters and buffers, by name."""
    return {name: tensor.detach() for name, tensor in strategy.model.state_dict().items()}


def optimizer_parts(strategy: Strategy) -> dict[str, Tensor]:
    """What this rank keeps of the optimizer's state, by `<parameter>:<quantity>`."""
    parameters = dict(strategy.model.named_parameters())
    return {
        f"{name}:{quantity}": placed_like(value, parameters[name])
        for name, state in strategy.optimizer_state().items()
        for quantity, value in state.items()
        if isinstance(value, Tensor)
    }


def _write(parts: dict[str, Tensor], folder: Path, strategy: Strategy) -> None:
    """`folder/JOINED` from the parts of all ranks."""
    counts = strategy.gather([len(parts)])
    total = strategy.share("" if counts is None else str(int(sum(row[0] for row in counts))))
    if int(total):
        storage = HuggingFaceStorageWriter(
            str(folder), save_distributed=True, enable_consolidation=True
        )
        save(parts, storage_writer=storage)
        if strategy.rank == 0:
            _write_scalars(folder)
    elif strategy.rank == 0:  # of an optimizer without state
        folder.mkdir()
        save_file({}, folder / JOINED)


def _write_scalars(folder: Path) -> None:
    """PyTorch 2.13 takes tensors without dims for empty ones when it joins the parts, and leaves
    zeros in their place."""
    scalars: dict[str, Tensor] = {}
    for file in (folder / "sharded").glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            names = [name for name in tensors.keys() if not tensors.get_slice(name).get_shape()]  # noqa: SIM118
            scalars |= {name: tensors.get_tensor(name) for name in names}
    with (folder / JOINED).open("r+b") as joined:
        start = 8 + int.from_bytes(joined.read(8), "little")  # of the data, after the header
        header = json.loads(joined.read(start - 8))
        for name, value in scalars.items():
            joined.seek(start + header[name]["data_offsets"][0])
            joined.write(value.numpy().tobytes())


def _empty_state(shapes: dict[str, tuple[int, ...]], strategy: Strategy) -> dict[str, Tensor]:
    """Room for the state of the file, made and put into the optimizer."""
    parameters = dict(strategy.model.named_parameters())
    states = strategy.optimizer_state()
    wanted = {}
    for key, shape in shapes.items():
        name, quantity = key.rsplit(":", 1)
        if name not in states:
            continue  # another rank's
        part = local(parameters[name])
        value = torch.zeros_like(part) if shape else torch.zeros((), dtype=torch.float32)
        states[name][quantity] = value
        wanted[key] = placed_like(value, parameters[name])
    return wanted


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(file, framework="pt") as tensors:
        return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
