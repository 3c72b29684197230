"""Saving and loading a model and its optimizer: safetensors and a manifest, never pickle. All ranks
load the same checkpoint.

Where several ranks write files into the hidden folder that rank 0 publishes, it learns their hashes
by messages, or, where threads write beside training, which is none of their business, by notes in
the folder.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.checkpoints.find import newest_position
from phalanx.checkpoints.folder import hidden_new, replacing, sync
from phalanx.checkpoints.gathering import gather_objects
from phalanx.checkpoints.manifest import (
    MANIFEST,
    MODEL_FILE,
    OPTIMIZER_FILE,
    Manifest,
    StoredFile,
    folder_name,
    read_manifest,
    verify,
    write_manifest,
)
from phalanx.checkpoints.rank_state import load_rank_state
from phalanx.checkpoints.tensor_file import (
    CheckpointFile,
    TensorFile,
    read_tensors,
    stored_files,
    write_files,
)
from phalanx.comm.file_copies import local_copies
from phalanx.comm.group import Group
from phalanx.comm.shared_folder import RankOnHost, by_host, gather_text, ranks_without
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy


def model_files(model: nn.Module, optimizer: Optimizer) -> list[CheckpointFile]:
    """Return the files of a model and its optimizer that one rank holds in full."""
    return [
        *TensorFile.all_of(MODEL_FILE, model_tensors(model)),
        *TensorFile.all_of(OPTIMIZER_FILE, optimizer_tensors(model, optimizer)),
    ]


def write_checkpoint(
    folder: Path,
    manifest: Manifest,
    files: Iterable[CheckpointFile],
    others: WrittenByOthers | None = None,
) -> Path:
    """Publish `files`, written in their order, with the manifest. Returns: the checkpoint.

    manifest: without its `files`, which are filled in here. others: ranks that write files, too,
    into the hidden folder, which `begin` has made.
    Raises: UserError when it cannot be written; what was there before is untouched.
    """
    target = folder / folder_name(*manifest.position)
    with named_checkpoint(target), replacing(target, is_begun=others is not None) as new:
        stored = write_files(files, new)
        if others is not None:
            stored |= others.stored(new)
        write_manifest(new, manifest, stored)
    return target


def load_checkpoint(
    checkpoint: Path, model: nn.Module, optimizer: Optimizer, rank: int = 0
) -> Manifest:
    """Put the checkpoint's values into `model` and `optimizer`, bit for bit.

    checkpoint: of this very model, as `check_model` finds. rank: the one that reads.
    Raises: UserError when a file is damaged.
    """
    manifest = verify(checkpoint, rank=rank)
    tensors = read_tensors(*stored_files(checkpoint, MODEL_FILE))
    fill(model, optimizer, tensors, read_tensors(*stored_files(checkpoint, OPTIMIZER_FILE)))
    return manifest


def fill(
    model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor], state: dict[str, Tensor]
) -> None:
    """Put values into a model and its optimizer. tensors, state: as `model_files` has them."""
    names = {stored_name(name): name for name in model.state_dict()}
    model.load_state_dict({names[key]: value for key, value in tensors.items()}, strict=False)
    _load_optimizer(state, model, optimizer)


def stored_name(name: str) -> str:
    """Return the name of a tensor in a checkpoint: the same for a compiled module as for the module
    itself."""
    return name.replace("_orig_mod.", "")


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by their names in a checkpoint."""
    state = model.state_dict()
    return {stored_name(name): t for name, t in state.items() if isinstance(t, Tensor)}


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state by parameter name: `<parameter>:<quantity>`."""
    states = optimizer.state
    return {
        f"{stored_name(name)}:{quantity}": value
        for name, parameter in model.named_parameters()
        for quantity, value in states.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def _load_optimizer(tensors: dict[str, Tensor], model: nn.Module, optimizer: Optimizer) -> None:
    """Load in place where the optimizer has made its state already: ranks may share that memory,
    into which each of them then writes the same values."""
    parameters = {stored_name(name): p for name, p in model.named_parameters()}
    on_host = _with_steps_on_host(optimizer)
    for key, value in tensors.items():
        name, quantity = key.rsplit(":", 1)
        parameter = parameters[name]
        state = optimizer.state[parameter]
        if isinstance(state.get(quantity), Tensor):
            state[quantity].copy_(value)
        else:
            is_step = quantity == "step" and parameter in on_host
            state[quantity] = value.clone() if is_step else _like(parameter, value)


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a copy on the device of a parameter; where it has its shape, in its order in memory,
    as PyTorch makes it: fused optimizers go through both as they lie there."""
    if value.shape != parameter.shape:
        return value.to(parameter.device, copy=True)
    return torch.empty_like(parameter.detach(), dtype=value.dtype).copy_(value)


def _with_steps_on_host(optimizer: Optimizer) -> set[Tensor]:
    """Return the parameters whose count of steps PyTorch keeps in the host's memory."""
    return {
        parameter
        for group in optimizer.param_groups
        if not group.get("fused") and not group.get("capturable")
        for parameter in group["params"]
    }


def parameters_sha256(model: nn.Module) -> str:
    """Return one digest of all parameters, names and bytes: equal on ranks that hold the same
    model. Collective where parameters are sharded; pipeline stages each have their own."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(_full_tensor(tensor).contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def state_sha256(model: nn.Module, optimizer: Optimizer) -> str:
    """Return one digest of parameters, buffers and the optimizer's state: names, types, bytes."""
    tensors = {**model_tensors(model), **optimizer_tensors(model, optimizer)}
    return tensors_sha256(sorted(tensors.items()))


def tensors_sha256(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return one digest of tensors: names, types, bytes."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(bytes_of(tensor).data)
    return digest.hexdigest()


def bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a tensor's values, (n,); a view where they are contiguous on the host."""
    values = tensor.detach().cpu().contiguous().reshape(-1)
    found: NDArray[np.uint8] = values.view(torch.uint8).numpy()
    return found


def _full_tensor(tensor: Tensor) -> Tensor:
    if type(tensor) is Tensor:  # a DTensor is met by strategies only that have imported it
        return tensor
    from phalanx.parallel.local_shards import full_tensor

    return full_tensor(tensor)


PATIENCE_S = 300.0
"""Seconds in which ranks that write a checkpoint have to write something."""
_POLL_S = 0.05
_NOTE = ".written-"
_MAX_NAMED = 8

Stored = Mapping[str, StoredFile]


class Gathered:
    """Ranks that wait for each other. Methods are collective: each rank calls one of them."""

    def __init__(self, group: Group | None) -> None:
        self._group = group

    def tell(self, new: Path, rank: int, stored: Stored) -> None:  # noqa: ARG002
        """Report, as another rank, what it has written into the hidden folder `new`."""
        gather_objects(self._group, stored)

    def stored(self, new: Path) -> Stored:  # noqa: ARG002
        """Return on rank 0 what the others have written, once all have."""
        rows = gather_objects(self._group, dict[str, StoredFile]())
        return {name: file for row in rows for name, file in row.items()}


class Notes:
    """Threads of ranks that train meanwhile: each leaves a note in the folder."""

    def __init__(self, writers: Collection[int]) -> None:
        """writers: ranks that write, rank 0 among them."""
        self._writers = set(writers) - {0}

    def tell(self, new: Path, rank: int, stored: Stored) -> None:
        note, unfinished = new / f"{_NOTE}{rank}", new / f"{_NOTE}{rank}-unfinished"
        unfinished.write_bytes(msgspec.json.encode(stored))
        unfinished.rename(note)

    def stored(self, new: Path) -> Stored:
        """Wait for the notes, and take them away.

        Raises: UserError naming the ranks that wrote nothing for `PATIENCE_S`.
        """
        missing, found = set(self._writers), dict[str, StoredFile]()
        seen, until = 0, time.monotonic() + PATIENCE_S
        while missing:
            for rank in sorted(missing):
                note = new / f"{_NOTE}{rank}"
                if note.exists():
                    found |= msgspec.json.decode(note.read_bytes(), type=dict[str, StoredFile])
                    note.unlink()
                    missing.remove(rank)
            size = sum(path.stat().st_size for path in new.glob("[!.]*"))
            if size + len(found) > seen:
                seen, until = size + len(found), time.monotonic() + PATIENCE_S
            if missing and time.monotonic() > until:
                named = ", ".join(map(str, sorted(missing)[:_MAX_NAMED]))
                more = f" and {len(missing) - _MAX_NAMED} more" * (len(missing) > _MAX_NAMED)
                raise UserError(
                    f"checkpoint {new} was not finished: rank{'s' * (len(missing) > 1)} "
                    f"{named}{more} wrote nothing for {PATIENCE_S:g} s: check the file system of "
                    "its folder, then resume"
                )
            if missing:
                time.sleep(_POLL_S)
        return found


WrittenByOthers = Gathered | Notes
"""Ranks that write files of a checkpoint beside rank 0."""


def write_part(
    files: Sequence[CheckpointFile], *, target: Path, rank: int, others: WrittenByOthers
) -> None:
    """Write this rank's files of the checkpoint `target` into its hidden folder, and report them.

    rank: this one, not the first. Raises: UserError when they cannot be written.
    """
    new = hidden_new(target)
    with named_checkpoint(target):
        stored = write_files(files, new)
        for name in stored:
            sync(new / name)
        others.tell(new, rank, stored)


@contextmanager
def named_checkpoint(target: Path) -> Iterator[None]:
    """Raise UserError, naming the checkpoint, for an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"checkpoint {target} could not be written: {error.strerror or error}; earlier "
            "checkpoints are intact: fix that (a full disk: free some space), then resume"
        ) from error


def agreed_manifest(checkpoint: Path | None, group: RunGroup) -> Manifest | None:
    """Return the manifest of the checkpoint that all ranks resume from, as rank 0 sees it.
    Collective.

    Under a launcher each rank looks for the newest one itself, on the disk that it sees; where a
    node has none, `readable_everywhere` gives it a copy.
    Raises: UserError when this rank cannot read it; on every rank, when they see different ones,
            or one sees a newer one of the run beside it than rank 0 does.
    """
    own = None if checkpoint is None else _read_here(checkpoint, group)
    text = group.share("" if own is None else msgspec.json.encode(own).decode())
    agreed = msgspec.json.decode(text, type=Manifest) if text else None
    newest = (0, 0)
    if checkpoint is not None and agreed is not None:
        newest = newest_position(checkpoint.parent, run=agreed.run)
    newest_of_first = tuple(json.loads(group.share(json.dumps(newest))))
    seen = ""
    if own is not None and (agreed is None or own.sha256 != agreed.sha256):
        is_same_place = agreed is not None and own.position == agreed.position
        seen = "another " * is_same_place + folder_name(*own.position)
    elif newest > newest_of_first:
        seen = folder_name(*newest)
    seen_by = gather_text(group, f"{seen},{socket.gethostname()}")
    if problem := group.share(_other_checkpoints(checkpoint, seen_by)):
        raise UserError(problem)
    return agreed


def _read_here(checkpoint: Path, group: RunGroup) -> Manifest | None:
    """Return the manifest; None where a node other than rank 0's has no such folder."""
    if group.rank > 0 and not checkpoint.exists():
        return None
    return read_manifest(checkpoint)


def _other_checkpoints(checkpoint: Path | None, seen_by: list[str]) -> str:
    """Name the ranks that see another checkpoint than rank 0; empty: there are none.

    seen_by: of every rank, what it sees instead, or nothing, and its host, by a comma.
    """
    ranks: dict[str, list[RankOnHost]] = {}
    for rank, text in enumerate(seen_by):
        seen, host = text.split(",", 1)
        if seen:
            ranks.setdefault(seen, []).append(RankOnHost(rank, host))
    if not ranks:
        return ""
    others = "; ".join(f"{by_host(those)}: {seen}" for seen, those in ranks.items())
    return (
        f"resume: ranks see different checkpoints (rank 0: {checkpoint or 'none'}; {others}): use "
        "a folder that all nodes share, or copy the newest checkpoint to all nodes"
    )


@contextmanager
def readable_everywhere(checkpoint: Path, manifest: Manifest, group: RunGroup) -> Iterator[Path]:
    """Give each rank the folder in which it can read a checkpoint of rank 0's. Collective, at the
    beginning of the block and at its end.

    A node that does not see it gets a copy in its temporary folder until the end of the block.
    manifest: agreed on by all ranks.
    Raises: UserError, on every rank, when it cannot be read, sent or written.
    """
    files = {name: checkpoint / name for name in (*manifest.files, MANIFEST)}
    is_wanted = group.rank > 0 and not _is_here(checkpoint, manifest)
    with local_copies(group, files, is_wanted=is_wanted) as copied:
        yield copied or checkpoint


def _is_here(checkpoint: Path, manifest: Manifest) -> bool:
    try:
        return read_manifest(checkpoint).sha256 == manifest.sha256
    except UserError:
        return False


def check_written_folder(folder: Path, group: RunGroup) -> tuple[str, bool]:
    """Return a line for the user where nodes do not share the folder of a run's checkpoints, which
    rank 0 alone writes then, else an empty one; and whether all ranks share it. Collective.

    Raises: UserError, on every rank, where a node has newer checkpoints there than rank 0 sees: a
            run that has moved to other nodes would begin anew beside them.
    """
    host = socket.gethostname()
    seen_by = gather_text(group, f"{host},{json.dumps(newest_position(folder))}")
    hosts, newest = zip(*(text.split(",", 1) for text in seen_by), strict=True)
    if len(set(hosts)) == 1:
        return "", group.size == 1 or not ranks_without(group, folder)
    positions = [tuple(json.loads(text)) for text in newest]
    rank = positions.index(max(positions))
    if positions[rank] > positions[0]:
        raise UserError(
            f"checkpoints in {folder}: rank {rank} ({hosts[rank]}) sees "
            f"{folder_name(*positions[rank])}, and rank 0 ({hosts[0]}) "
            f"{folder_name(*positions[0]) if any(positions[0]) else 'none'}: start the run with "
            f"{hosts[rank]} as its first node, copy them to {hosts[0]}, or use another folder"
        )
    others = ranks_without(group, folder)
    if not others:
        return "", True
    line = (
        f"checkpoints: rank 0 writes them into {folder} on {hosts[0]}, which {by_host(others)} "
        "does not share"
    )
    return line, False


def load(checkpoint: Path, strategy: Strategy) -> tuple[Manifest, list[str]]:
    """Load what any strategy has saved of this very model, and return lines for the user on what
    did not fit. Collective.

    Raises: UserError when a file is damaged.
    """
    if strategy.is_sharded:
        from phalanx.checkpoints.sharded import load_sharded

        manifest = load_sharded(checkpoint, strategy)
    else:
        parts = (strategy.model, strategy.optimizer)
        manifest = load_checkpoint(checkpoint, *parts, strategy.rank)
    return manifest, list(filter(None, [load_rank_state(checkpoint, manifest, strategy)]))
