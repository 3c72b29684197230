"""Manifest of a checkpoint: its contents, the SHA-256 of every file and its own. No torch.

A checkpoint is a folder `epoch-<n>`, or `epoch-<n>-samples-<m>` within the next epoch, with tensors
as safetensors and a `manifest.json`. The folder appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from phalanx.errors import UserError
from phalanx.records.regular_file import FileName, open_regular, read_regular

MANIFEST = "manifest.json"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
PROGRAM_FILE = "program.json"
"""Only in checkpoints of programs: all that is no tensor of the model or of optimizers."""
TRAINER = "trainer"
"""The program's own option by which `phalanx train` is known."""
MANIFEST_SCHEMA = 5
"""Version, since 5 with tensors in several files where they are large; older ones are refused."""

OF_THE_PROGRAM = " of the program"
"""End of the name of an option of the program's own, in errors."""

_KEPT = "kept-"

Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Sha256 = Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")]
Value = str | int | float | bool | None


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sha256: Sha256
    bytes: Count


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int = MANIFEST_SCHEMA
    phalanx: str
    model: str
    dtype: str
    optimizer: str
    dataset: str
    seed: Count
    global_batch_size: AtLeastOne
    epochs_done: Count
    samples_seen: Count = 0
    """Samples of the epoch after these that all ranks together have seen: any number of ranks
    resumes from there."""
    train_samples: Count = 0
    """Samples of an epoch; 0 where unknown."""
    options: dict[str, int] = {}
    """Options of the model."""
    run: str = ""
    """Id of the run, kept when it resumes by the same recipe."""
    saved_at: float = msgspec.field(default_factory=time.time)
    """Seconds since 1970."""
    recipe: dict[str, Value] = {}
    """All other options that decide the numbers."""
    program: dict[str, Value] = {}
    """The program's own options that do, by its own names."""
    files: dict[FileName, StoredFile] = {}
    sha256: Sha256 = ""
    """SHA-256 of the manifest with this left empty."""

    @property
    def position(self) -> tuple[int, int]:
        """Epochs done, and samples seen of the next."""
        return self.epochs_done, self.samples_seen


def differing_values(there: Mapping[str, Value], here: Mapping[str, Value]) -> dict[str, str]:
    """Return a phrase for each value that differs, by its name; a name that is missing on one side
    has the value None there."""
    return {
        name: f"{name} {_shown(there.get(name))} there, {_shown(here.get(name))} here"
        for name in {**here, **there}
        if there.get(name) != here.get(name)
    }


class OtherRecipeError(UserError):
    """A checkpoint is of another recipe than the run that was to resume from it."""

    def __init__(self, message: str, names: Iterable[str]) -> None:
        super().__init__(message)
        self.names = [name.removesuffix(OF_THE_PROGRAM) for name in names]
        """Names of the options that differ."""


def _shown(value: Value) -> str:
    return "none" if value is None or value == "" else str(value)


def folder_name(epochs_done: int, samples_seen: int = 0) -> str:
    """samples_seen: of the epoch after these; 0: it has not begun."""
    return f"epoch-{epochs_done:04d}" + (f"-samples-{samples_seen:08d}" if samples_seen else "")


def rank_state_file(rank: int) -> str:
    """Return the file name of the state that `rank` keeps for itself."""
    return f"{_KEPT}{rank}.safetensors"


def is_rank_state_file(name: str) -> bool:
    return name.startswith(_KEPT)


def write_manifest(
    folder: Path, manifest: Manifest, stored: Mapping[str, StoredFile] | None = None
) -> None:
    """Write the manifest of the files in `folder`, with its own digest.

    stored: sizes and hashes of the files, by name; None: they are read.
    """
    if stored is None:
        stored = {path.name: _stored(path) for path in folder.iterdir()}
    complete = msgspec.structs.replace(manifest, files=dict(sorted(stored.items())))
    signed = msgspec.structs.replace(complete, sha256=_digest(complete))
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(signed), indent=2))


def read_manifest(checkpoint: Path) -> Manifest:
    """Read the manifest alone; the files beside it are not checked.

    Raises: UserError when it is missing, damaged, or of another schema.
    """
    try:
        content = read_regular(checkpoint / MANIFEST)
    except FileNotFoundError:
        raise UserError(f"checkpoint {checkpoint} has no {MANIFEST}") from None
    except OSError as error:
        raise UserError(f"checkpoint {checkpoint}: {MANIFEST}: {error.strerror}") from error
    try:
        schema = msgspec.json.decode(content, type=_SchemaVersion).schema
        if schema != MANIFEST_SCHEMA:
            raise UserError(_other_schema(checkpoint, schema))
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"checkpoint {checkpoint}: {MANIFEST} is damaged: {error}") from error
    if manifest.sha256 != _digest(manifest):
        raise UserError(
            f"checkpoint {checkpoint}: {MANIFEST} is damaged or was altered: its SHA-256 does not "
            "match"
        )
    for name in (MODEL_FILE, OPTIMIZER_FILE):
        if name not in manifest.files and not _has_all(manifest, name):
            raise UserError(f"checkpoint {checkpoint}: {MANIFEST} does not list {name}")
    return manifest


def _has_all(manifest: Manifest, name: str) -> bool:
    """Return whether the tensors of `name` are in several files, and none of these is missing."""
    stem, _, ending = name.rpartition(".")
    pattern = re.compile(rf"{stem}-\d{{5}}-of-(\d{{5}})\.{ending}")
    found = [match for each in manifest.files if (match := pattern.fullmatch(each))]
    return bool(found) and all(int(match[1]) == len(found) for match in found)


def verify(checkpoint: Path, *, rank: int | None = None) -> Manifest:
    """Read the manifest and hold every file to it. Cost: all files are read.

    rank: that leaves to the others what they keep for themselves; None: all of it.
    Raises: UserError naming the file that is missing or damaged.
    """
    manifest = read_manifest(checkpoint)
    for name, stored in manifest.files.items():
        if (
            rank is not None
            and is_rank_state_file(name)
            and name not in (rank_state_file(0), rank_state_file(rank))
        ):
            continue
        problem = _problem(checkpoint / name, stored)
        if problem:
            raise UserError(
                f"checkpoint {checkpoint} is damaged: {name} {problem}; resume from an older one"
            )
    return manifest


class _SchemaVersion(msgspec.Struct):
    schema: int = 0


def _other_schema(checkpoint: Path, schema: int) -> str:
    if schema > MANIFEST_SCHEMA:
        return f"checkpoint {checkpoint} was written by a newer Phalanx: update Phalanx"
    return (
        f"checkpoint {checkpoint} was written by an older Phalanx (manifest schema {schema}, this "
        f"one reads {MANIFEST_SCHEMA}): finish that run with the version that started it"
    )


def _digest(manifest: Manifest) -> str:
    unsigned = msgspec.structs.replace(manifest, sha256="")
    return hashlib.sha256(msgspec.json.encode(unsigned)).hexdigest()


def _stored(path: Path) -> StoredFile:
    return StoredFile(sha256=file_sha256(path), bytes=path.stat().st_size)


def _problem(path: Path, stored: StoredFile) -> str | None:
    try:
        if not path.is_file():
            return "is missing"
        num_bytes = path.stat().st_size
        if num_bytes != stored.bytes:
            return f"has {num_bytes} bytes instead of {stored.bytes}"
        if file_sha256(path) != stored.sha256:
            return "does not match the SHA-256 in the manifest"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def file_sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
