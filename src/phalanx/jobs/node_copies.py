"""Folders in the memory of a node with copies of a run's checkpoints.

A folder belongs to one run, by a word in its name. It outlives the ranks that fill it, and goes
when the process that owns the run removes it on all nodes.

Run as a program, `memory_copies.py list <folder>` prints the copies of this node as JSON, and
`memory_copies.py remove <folder>` removes the folder. It needs the standard library only, so that a
node gets it through standard input.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "phalanx-copies-"
OWNED = ".owned"
"""Locked by the process that owns the run, on its machine, while it lives."""
SILENT_S = 900.0
"""Age of the last copy from which a folder counts as abandoned, where no process of the run is on
the node, and its owner is on another."""
_MANIFEST = "manifest.json"
_UNFINISHED = ".new"


def folder_of(token: str) -> Path:
    """Return the folder of the run that has `token`; the same on every node."""
    return SHARED_MEMORY / f"{PREFIX}{token}"


def list_copies(folder: Path) -> list[dict[str, Any]]:
    """Return the copies in a run's folder, each with its place below it and what its manifest says.

    `problem` says what is wrong with one that is damaged or was not finished; empty: it is valid.
    Cost: all files are read.
    """
    if not is_private(folder):
        return []
    return [_examine(path, folder) for path in sorted(folder.glob("*/*")) if path.is_dir()]


def is_private(folder: Path) -> bool:
    """Return whether this is a folder of this user's that nobody else reads or writes: anybody may
    make one in the shared memory, under a name that a run has on another node."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
    return is_own and not state.st_mode & 0o077


def _examine(path: Path, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"place": str(path.relative_to(folder)), "problem": ""}
    if path.name.startswith("."):
        is_new = path.name.endswith(_UNFINISHED)
        return found | {"problem": "was not finished" if is_new else "was replaced"}
    try:
        with _opened(path / _MANIFEST) as file:
            manifest = json.load(file)
        names = ("sha256", "epochs_done", "samples_seen", "train_samples", "global_batch_size")
        found |= {name: manifest[name] for name in (*names, "saved_at")}
        for name, stored in manifest["files"].items():
            if Path(name).name != name:
                return found | {"problem": f"is damaged: {name!r} is not a file name"}
            with _opened(path / name) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != stored["sha256"]:
                return found | {"problem": f"is damaged: {name} does not have its SHA-256"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return found | {"problem": f"is damaged: {error or type(error).__name__}"}
    return found


def _opened(path: Path) -> io.BufferedReader:
    """Open a file, no link, and no FIFO to wait for."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


@contextlib.contextmanager
def owned_folder(token: str) -> Iterator[Path | None]:
    """Make the folder of a run that this process owns, and remove it at the end of the block. None
    where this machine has no shared memory to write to."""
    folder = folder_of(token)
    hidden = folder.with_name(f".{folder.name}")  # hidden until it is locked
    try:
        hidden.mkdir(mode=0o700)
        lock = (hidden / OWNED).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        hidden.rename(folder)
    except OSError:
        shutil.rmtree(hidden, ignore_errors=True)
        yield None
        return
    try:
        with lock:
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def abandoned_folders() -> list[Path]:
    """Return the folders of this user whose run is no more: its owner has died or is on another
    machine, no process of it is on this node, and nothing was written for long."""
    return [path for path in SHARED_MEMORY.glob(f"{PREFIX}*") if _is_abandoned(path)]


def remove_abandoned() -> None:
    """Remove what runs have left whose owner was killed."""
    for path in abandoned_folders():
        shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    from phalanx.jobs.leftovers import processes_with  # not on a node that is asked by ssh

    try:
        if folder.lstat().st_uid != os.geteuid() or not folder.is_dir():
            return False
        if (folder / OWNED).exists():
            with (folder / OWNED).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif any(
            time.time() - path.stat().st_mtime < SILENT_S for path in (folder, *folder.glob("*"))
        ):
            return False
    except OSError:  # locked, or removed meanwhile
        return False
    return not processes_with(folder.name.removeprefix(PREFIX))


def main(words: list[str]) -> None:
    """Do what the words of the command line say."""
    what, folder = words[0], Path(words[1])
    if what == "list":
        print(json.dumps(list_copies(folder)))
    else:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            sys.exit(f"{folder} cannot be removed")


if __name__ == "__main__":
    main(sys.argv[1:])
