"""Progress file of an unfinished pack: the writer's arguments and the shards completed so far."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from phalanx.data.packed.index import Field, Layout, Shard
from phalanx.records.files import DECODE_ERRORS, write_atomically

PROGRESS = ".progress.jsonl"


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Two packs with the same arguments, of the same data, are the same bytes."""

    layout: Layout
    fields: list[Field]
    shard_bytes: int
    source: str
    classes: list[str]


def read_progress(folder: Path) -> tuple[Arguments, list[Shard]] | None:
    """Return arguments and complete shards, or None; ignore a truncated last line."""
    try:
        lines = (folder / PROGRESS).read_bytes().split(b"\n")[:-1]
        if not lines:
            return None
        arguments = msgspec.json.decode(lines[0], type=Arguments)
        return arguments, [msgspec.json.decode(line, type=Shard) for line in lines[1:]]
    except (FileNotFoundError, *DECODE_ERRORS):
        return None


def rewrite_progress(folder: Path, arguments: Arguments, shards: Sequence[Shard]) -> None:
    """Write the file again, without a truncated last line."""
    lines = [msgspec.json.encode(line) for line in (arguments, *shards)]
    write_atomically(folder / PROGRESS, b"\n".join([*lines, b""]))


def add_progress(folder: Path, shard: Shard) -> None:
    """Append and fsync the line of a shard whose files are already on disk."""
    with (folder / PROGRESS).open("ab") as file:
        file.write(msgspec.json.encode(shard) + b"\n")
        file.flush()
        os.fsync(file.fileno())
