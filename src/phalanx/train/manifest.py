"""What a checkpoint folder says of itself, and whether that is true. Needs no torch.

A checkpoint is a folder `epoch-<n>`, or `epoch-<n>-step-<m>` within the next epoch, with tensors as
safetensors and a `manifest.json` that holds the SHA-256 of every file. The folder appears under its
name only when it is whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from phalanx.errors import UserError

MANIFEST = "manifest.json"
MANIFEST_SCHEMA = 2
WHOLE_EPOCHS = 1  # the schema of a manifest that says nothing of an epoch in part

_KEPT = "kept-"


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = WHOLE_EPOCHS
    phalanx: str
    model: str
    dtype: str
    optimizer: str
    dataset: str
    seed: int
    global_batch_size: int
    epochs_done: int
    samples_seen: int = 0
    """Of the epoch after these, by all ranks together: from there any number of ranks goes on."""
    order: str = ""
    """Of the samples of an epoch, besides its seed; empty in the manifests of older versions."""
    options: dict[str, int] = {}
    """Of the model, every default filled in; empty in the manifests of older versions."""
    files: dict[str, StoredFile]


def folder_name(epochs_done: int, step: int = 0) -> str:
    """step: of the epoch after these; 0: that has not begun. Names sort as they were made."""
    return f"epoch-{epochs_done:04d}" + (f"-step-{step:06d}" if step else "")


def folder_of(manifest: Manifest) -> str:
    """The name of the checkpoint's folder; a step has `global_batch_size` samples."""
    steps = -(-manifest.samples_seen // manifest.global_batch_size)
    return folder_name(manifest.epochs_done, steps)


def find_checkpoint(path: Path) -> Path:
    """`path` itself when it is a checkpoint, else the newest checkpoint in the folder `path`.

    Raises: UserError when there is none.
    """
    if (path / MANIFEST).is_file():
        return path
    if not path.is_dir():
        raise UserError(f"--resume {path}: there is no such folder")
    found = sorted(manifest.parent for manifest in path.glob(f"epoch-*/{MANIFEST}"))
    if not found:
        raise UserError(f"--resume {path}: no checkpoint (epoch-*/{MANIFEST}) in this folder")
    return found[-1]


def kept_file(rank: int) -> str:
    """The file of what `rank` keeps for itself."""
    return f"{_KEPT}{rank}.safetensors"


def is_kept(name: str) -> bool:
    return name.startswith(_KEPT)


def read_manifest(checkpoint: Path, *, rank: int | None = None) -> Manifest:
    """Read the manifest and hold every file to it.

    rank: that leaves to the others what they keep for themselves.
    Raises: UserError naming the file that is missing, damaged or of a newer kind.
    """
    try:
        manifest = msgspec.json.decode((checkpoint / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"checkpoint {checkpoint} cannot be read: {error}") from error
    if manifest.schema > MANIFEST_SCHEMA:
        raise UserError(f"checkpoint {checkpoint} was written by a newer Phalanx: update Phalanx")
    for name, stored in manifest.files.items():
        if rank is not None and is_kept(name) and name not in (kept_file(0), kept_file(rank)):
            continue
        problem = _problem(checkpoint / name, stored)
        if problem:
            raise UserError(
                f"checkpoint {checkpoint} is damaged: {name} {problem}; resume from an older one"
            )
    return manifest


def _problem(path: Path, stored: StoredFile) -> str | None:
    if not path.is_file():
        return "is missing"
    num_bytes = path.stat().st_size
    if num_bytes != stored.bytes:
        return f"has {num_bytes} bytes instead of {stored.bytes}"
    if file_sha256(path) != stored.sha256:
        return "does not have the SHA-256 of the manifest"
    return None


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_resumable(
    manifest: Manifest,
    checkpoint: Path,
    *,
    epochs: int,
    seed: int,
    options: Mapping[str, int | None],
    **wanted: str | int,
) -> None:
    """Raise UserError when the checkpoint is of another `model`, `optimizer` …, or finished.

    options: of the model, completed. wanted: fields of the manifest with the values that the run
    asks for. epochs: its goal. seed: by which its samples are ordered.
    """
    pairs: dict[str, tuple[object, object]]
    pairs = {name: (getattr(manifest, name), value) for name, value in wanted.items()}
    pairs |= {name: (value, options.get(name)) for name, value in manifest.options.items()}
    for name, (found, value) in pairs.items():
        if found != value:
            raise UserError(
                f"checkpoint {checkpoint} is of {name} {found}, this run wants {value}: "
                f"use --{name} {found} or another checkpoint"
            )
    if manifest.samples_seen and manifest.seed != seed:
        raise UserError(
            f"checkpoint {checkpoint} is within an epoch of seed {manifest.seed}, this run wants "
            f"{seed}, in whose order other samples are left: use --seed {manifest.seed}, or a "
            "checkpoint of a whole epoch"
        )
    if manifest.epochs_done >= epochs:
        raise UserError(
            f"checkpoint {checkpoint} has done {manifest.epochs_done} epochs, "
            f"--epochs {epochs} leaves none to do: raise --epochs"
        )


def check_order(manifest: Manifest, checkpoint: Path, order: str) -> None:
    """Raise UserError when the checkpoint is within an epoch of other samples, or of the same in
    another order: what is left of it cannot be told then."""
    if not manifest.samples_seen:
        return
    if manifest.order != order:
        raise UserError(
            f"checkpoint {checkpoint} is within an epoch of {manifest.order}, this run's epochs "
            f"are of {order}: take the same options, or a checkpoint of a whole epoch"
        )
