"""Shards brought from shared storage to each node's own disk, ahead of need, beside training.

One rank of each node is a stager. Of every shard one stager in the whole job reads it, in turn, and
hands it on to the others over MPI, so that shared storage gives every byte once. The first stager
decides what comes and what goes; the others follow, so that all nodes hold the same shards but for
what their disks refuse.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.group import Group
from phalanx.data.packed.index import File
from phalanx.data.relay import COMMAND_TAG, PIECE_BYTES, receive, relayed, send_to_all
from phalanx.data.stage_folder import StageFolder
from phalanx.data.stage_plan import Move, Unit, next_move

IDLE_S = 0.05
"""Between two looks whether there is something to do."""

STOP = -1

LEAVE_S = 60.0
"""Given to the shard that is on its way when the run ends."""


class Stager:
    """One node's. `close` is collective over the stagers."""

    def __init__(
        self,
        shared: Path,
        folder: StageFolder,
        units: Sequence[Unit],
        ahead: Callable[[], Sequence[Sequence[int]]],
        *,
        most_bytes: float | None = None,
        group: Group | None = None,
    ) -> None:
        """shared: the pack's folder. ahead: units in the order in which they are needed from now
        on, as `next_move` takes them; asked of the first stager only. group: of the stagers, used
        by nobody else; None: there is one. Collective."""
        self._shared, self._folder, self._units, self._ahead = shared, folder, units, ahead
        self._most_bytes, self._group = most_bytes, group
        self._sizes = [unit.bytes for unit in units]
        self._held = self._agree([number for number, it in enumerate(units) if folder.holds(it)])
        self._given_up: set[int] = set()
        self._is_full = False
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._notices: list[str] = []
        self.read_bytes = 0
        """That this stager has read from shared storage."""
        self._thread = threading.Thread(target=self._run, name="stager", daemon=True)
        self._thread.start()

    def notices(self) -> list[str]:
        """Return notices for the user since the last call."""
        with self._lock:
            told, self._notices = self._notices, []
        return told

    def close(self) -> None:
        """End with the shard that is on its way, and give the folder back."""
        self._stopped.set()
        self._thread.join(LEAVE_S)
        if self._group is not None:
            self._group.close()
        self._folder.close()

    def _run(self) -> None:
        try:
            if self._group is not None and self._group.rank > 0:
                self._follow(self._group)
            else:
                self._lead()
        except Exception as error:  # noqa: BLE001  # training goes on without
            self._tell(f"staging has ended: {error}; what is left is read from {self._shared}")

    def _lead(self) -> None:
        while not self._stopped.is_set():
            move = next_move(
                self._ahead(), self._held, self._sizes, self._most_bytes, given_up=self._given_up
            )
            if move is None or (self._is_full and self._group is None):
                self._stopped.wait(IDLE_S)
                continue
            self._order([move.unit, *move.evict])
            self._make(move)
        self._order([STOP])

    def _follow(self, group: Group) -> None:
        while True:
            command = np.empty(len(self._units) + 2, np.int64)
            receive(group, command, 0, COMMAND_TAG)
            if command[0] == STOP:
                return
            evict = command[2 : 2 + int(command[1])].tolist()
            self._make(Move(int(command[0]), evict))

    def _order(self, words: list[int]) -> None:
        if self._group is not None:
            command = np.zeros(len(self._units) + 2, np.int64)
            command[0], command[1] = words[0], len(words) - 1
            command[2 : 1 + len(words)] = words[1:]
            send_to_all(self._group, command)

    def _make(self, move: Move) -> None:
        for number in move.evict:
            self._folder.remove(self._units[number])
            self._held.discard(number)
        unit, refused = self._units[move.unit], False
        for file in unit.files:
            refused |= not self._bring(unit, file, move.unit)
        if refused:
            self._folder.remove(unit)
            self._given_up.add(move.unit)
        else:
            self._held.add(move.unit)

    def _bring(self, unit: Unit, file: File, number: int) -> bool:
        """Stage one file; return whether it is complete. Collective, even with a full disk."""
        target = self._folder.place(unit) / file.name
        hidden = target.with_name(f".{file.name}.part")
        writer = _Writer(hidden) if not self._is_full else None
        try:
            for piece in self._pieces(self._shared / unit.split / file.name, number):
                if writer is not None:
                    writer.write(piece)
            if writer is None:
                return False
            fault = writer.finish(file)
        except OSError as error:
            fault = f"cannot be read: {error.strerror or error}"
            if writer is not None:
                writer.close()
        if fault is None:
            hidden.rename(target)
            return True
        hidden.unlink(missing_ok=True)
        if writer is not None and writer.is_full:
            self._is_full = True
        self._tell(
            f"{unit.split}/{file.name} was not staged to {target.parent}: {fault}; "
            f"it is read from {self._shared}"
        )
        return False

    def _pieces(self, path: Path, number: int) -> Iterator[bytes]:
        if self._group is None:
            return self._read(path)
        return relayed(self._group, number % self._group.size, self._read(path))

    def _read(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                self.read_bytes += len(piece)
                yield piece

    def _agree(self, held: list[int]) -> set[int]:
        """Return the units that every node already holds from an earlier run; remove the others."""
        here = np.zeros(len(self._units), np.int64)
        here[held] = 1
        if self._group is not None:
            self._group.all_reduce(Buffer.of(here), ReduceOp.MIN)
        for number in held:
            if not here[number]:
                self._folder.remove(self._units[number])
        return set(np.flatnonzero(here).tolist())

    def _tell(self, notice: str) -> None:
        with self._lock:
            self._notices.append(notice)


class _Writer:
    """Writes down what comes, and goes on taking it when the disk refuses."""

    def __init__(self, path: Path) -> None:
        self._path, self._digest = path, hashlib.sha256()
        self._error: OSError | None = None
        try:
            self._file = path.open("wb")
        except OSError as error:
            self._error = error

    @property
    def is_full(self) -> bool:
        return self._error is not None and self._error.errno in (errno.ENOSPC, errno.EDQUOT)

    def write(self, piece: bytes) -> None:
        if self._error is None:
            try:
                self._file.write(piece)
            except OSError as error:
                self._refuse(error)
            self._digest.update(piece)

    def finish(self, file: File) -> str | None:
        """Close the file; return what is wrong with it, or None."""
        if self._error is None:
            try:
                self._file.close()
            except OSError as error:
                self._refuse(error)
        if self._error is not None:
            return os.strerror(self._error.errno or errno.EIO)
        if self._digest.hexdigest() != file.sha256:
            return "the copy does not have the SHA-256 of the index"
        return None

    def close(self) -> None:
        """Close the file; ignore errors."""
        with contextlib.suppress(OSError, AttributeError):  # it may never have been opened
            self._file.close()

    def _refuse(self, error: OSError) -> None:
        self._error = error
        self.close()
