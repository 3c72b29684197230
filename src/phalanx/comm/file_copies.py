"""Copies of rank 0's files on the disks of nodes that lack them, sent as messages.

A rank needs memory for one piece of `PIECE_BYTES`; a node that lacks the files, room in its
temporary folder for all of them, where they stay only as long as they are read.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.clock import machine
from phalanx.comm.shared_folder import TalkingRanks, gather_text
from phalanx.errors import UserError
from phalanx.jobs.temporary import job_folder
from phalanx.records.regular_file import open_regular, relative_path

PIECE_BYTES = 4 * 2**20


class BroadcastingRanks(TalkingRanks, Protocol):
    """Ranks that can send each other bytes."""

    def broadcast(self, values: NDArray[np.uint8]) -> None:
        """Fill `values`, (n,), with those of rank 0, in place."""


@contextmanager
def local_copies(
    ranks: BroadcastingRanks,
    files: Mapping[str, Path],
    *,
    is_wanted: bool,
    make_folder: Callable[[], AbstractContextManager[Path]] = job_folder,
) -> Iterator[Path | None]:
    """Give each rank that wants it a folder of its node with copies of rank 0's files.

    Collective, at the beginning of the block and at its end, when the copies are removed. Nothing
    is sent where no rank wants any. files: by relative path, of rank 0 alone. make_folder: makes
    the folder of a node, and removes it.
    Yields: the folder; None where it is not wanted.
    Raises: UserError, on every rank, when a file cannot be read or written.
    """
    node = f"{socket.gethostname()} {machine(ranks.rank)}"
    wanting = gather_text(ranks, node if is_wanted else "")
    if not any(wanting):
        yield None
        return
    with ExitStack() as stack:
        is_writer = is_wanted and wanting.index(node) == ranks.rank
        folder = stack.enter_context(make_folder()) if is_writer else None
        send_files(ranks, files, folder)
        folders = gather_text(ranks, str(folder or ""))
        found = Path(folders[wanting.index(node)]) if is_wanted else None
        lost = f"rank {ranks.rank} ({socket.gethostname()}) does not see {found}, where the first "
        lost += "rank of its host has copied files to"
        raise_first(ranks, "" if found is None or found.is_dir() else lost)
        yield found
        raise_first(ranks, "")  # a barrier: all have read when the copies are removed


def send_files(ranks: BroadcastingRanks, files: Mapping[str, Path], into: Path | None) -> None:
    """Write rank 0's files into the folder `into`, where a rank has named one. Collective.

    Nothing is sent where these folders have files of these names and sizes already.
    files: by relative path, of rank 0 alone.
    Raises: UserError, on every rank, when a file cannot be read or written, or its name would leave
            the folder.
    """
    faults, sizes = list[str](), dict[str, int]()
    if ranks.rank == 0:  # others may not see its files
        with _noting(ranks, faults):
            sizes = {name: path.stat().st_size for name, path in files.items()}
    _raise_noted(ranks, faults)
    sizes = json.loads(ranks.share(json.dumps(sizes)))
    paths = {name: relative_path(name) for name in sizes}
    missing = [] if into is None else [n for n in sizes if not _has(into / paths[n], sizes[n])]
    if any(gather_text(ranks, "missing" if missing else "")):
        if into is not None:
            faults += _lack_of_room(ranks, into, sum(sizes[name] for name in missing))
        _raise_noted(ranks, faults)
        for name, size in sizes.items():
            path = files[name] if ranks.rank == 0 else into and into / paths[name]
            _copy_file(ranks, path, size, faults)
        _raise_noted(ranks, faults)


def _has(path: Path, num_bytes: int) -> bool:
    try:
        return path.stat().st_size == num_bytes
    except OSError:
        return False


def _lack_of_room(ranks: TalkingRanks, folder: Path, num_bytes: int) -> list[str]:
    """Return in words how much is missing for `num_bytes` in `folder`, if anything is."""
    free = shutil.disk_usage(folder).free
    if free >= num_bytes:
        return []
    return [
        f"rank {ranks.rank} ({socket.gethostname()}): {folder} has room for {free / 1e6:,.1f} MB, "
        f"but the copies need {num_bytes / 1e6:,.1f} MB: free some space, or use another folder "
        "(--stage for packs, else $TMPDIR)"
    ]


def raise_first(ranks: TalkingRanks, fault: str) -> None:
    """Raise UserError, on every rank, with the fault of the first rank that has one; `fault` is
    empty where there is none. Collective."""
    faults = [text for text in gather_text(ranks, fault) if text]
    if faults:
        raise UserError(faults[0])


def _raise_noted(ranks: TalkingRanks, faults: Sequence[str]) -> None:
    raise_first(ranks, faults[0] if faults else "")


@contextmanager
def _noting(ranks: TalkingRanks, faults: list[str]) -> Iterator[None]:
    """Add an error of the block to `faults`: the other ranks wait for what comes after it."""
    try:
        yield
    except OSError as error:
        faults.append(
            f"rank {ranks.rank} ({socket.gethostname()}): {error.filename or 'copying files'}: "
            f"{error.strerror or error}"
        )


def _copy_file(ranks: BroadcastingRanks, path: Path | None, size: int, faults: list[str]) -> None:
    """Send the file `path` of rank 0, or receive it and write it to `path`: all pieces, whatever
    happens. path: None: write nothing."""
    is_sender, piece = ranks.rank == 0, np.zeros(min(size, PIECE_BYTES), np.uint8)
    file: IO[bytes] | None = None
    with ExitStack() as stack:
        with _noting(ranks, faults):
            if path is not None and is_sender:
                file = stack.enter_context(open_regular(path))
            elif path is not None and not faults:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(path.open("wb"))
        for start in range(0, size, PIECE_BYTES):
            part = piece[: min(PIECE_BYTES, size - start)]
            with _noting(ranks, faults):
                if file is not None and is_sender and _fill(file, part) < len(part):
                    cut = f"{path} was cut short while rank 0 ({socket.gethostname()}) sent it"
                    faults.append(cut)
            ranks.broadcast(part)
            with _noting(ranks, faults):
                if file is not None and not is_sender and not faults:
                    file.write(part.data)
        with _noting(ranks, faults):
            if file is not None:
                file.close()


def _fill(file: IO[bytes], part: NDArray[np.uint8]) -> int:
    content = file.read(len(part))
    part[: len(content)] = np.frombuffer(content, np.uint8)
    return len(content)
