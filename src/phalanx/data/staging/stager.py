"""Staging of shards from shared storage to each node's local disk, ahead of need, during training.

One rank of each node is a stager. Each shard is read by one stager of the job, in turn, and
broadcast to the others over MPI, so that every byte is read once from shared storage. The first
stager decides which shards to stage and to evict; the others follow, so that all nodes hold the
same shards, except where a disk fails.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.group import Group
from phalanx.comm.message_request import MessageRequest
from phalanx.data.packed.index import File
from phalanx.data.staging.stage_folder import StageFolder
from phalanx.data.staging.stage_schedule import StageMove, StageUnit, next_move

POLL_S = 0.05
"""Time between two polls for work."""

STOP = -1

CHUNK_BYTES = 4 * 2**20
COMMAND_TAG, CHUNK_TAG = 1, 2
MESSAGE_POLL_S = 1e-3

SHUTDOWN_S = 60.0
"""Time for the shard in transit to complete when the run ends."""


class Stager:
    """Background thread that stages shards on one node. `close` is collective over the stagers."""

    def __init__(
        self,
        shared: Path,
        folder: StageFolder,
        units: Sequence[StageUnit],
        ahead: Callable[[], Sequence[Sequence[int]]],
        *,
        max_bytes: float | None = None,
        group: Group | None = None,
    ) -> None:
        """shared: the pack's folder. ahead: returns the units in the order in which they are needed
        from now on, as `next_move` takes them; called by the first stager only. group: group of
        the stagers, for their exclusive use; None: only one stager. Collective."""
        self._shared, self._folder, self._units, self._ahead = shared, folder, units, ahead
        self._max_bytes, self._group = max_bytes, group
        self._sizes = [unit.bytes for unit in units]
        self._held = self._units_held_by_all(
            [number for number, it in enumerate(units) if folder.holds(it)]
        )
        self._given_up: set[int] = set()
        self._is_full = False
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._notices: list[str] = []
        self.read_bytes = 0
        """Bytes that this stager has read from shared storage."""
        self._thread = threading.Thread(target=self._run, name="stager", daemon=True)
        self._thread.start()

    def notices(self) -> list[str]:
        """Return notices for the user since the last call."""
        with self._lock:
            notices, self._notices = self._notices, []
        return notices

    def close(self) -> None:
        """Complete the shard in transit, end the thread and close the folder."""
        self._stopped.set()
        self._thread.join(SHUTDOWN_S)
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
            self._notify(f"staging stopped: {error}; the rest is read from {self._shared}")

    def _lead(self) -> None:
        while not self._stopped.is_set():
            move = next_move(
                self._ahead(), self._held, self._sizes, self._max_bytes, given_up=self._given_up
            )
            if move is None or (self._is_full and self._group is None):
                self._stopped.wait(POLL_S)
                continue
            self._send_command([move.unit, *move.evict])
            self._apply(move)
        self._send_command([STOP])

    def _follow(self, group: Group) -> None:
        while True:
            command = np.empty(len(self._units) + 2, np.int64)
            _receive(group, command, 0, COMMAND_TAG)
            if command[0] == STOP:
                return
            evict = command[2 : 2 + int(command[1])].tolist()
            self._apply(StageMove(int(command[0]), evict))

    def _send_command(self, words: list[int]) -> None:
        if self._group is not None:
            command = np.zeros(len(self._units) + 2, np.int64)
            command[0], command[1] = words[0], len(words) - 1
            command[2 : 1 + len(words)] = words[1:]
            for rank in range(1, self._group.size):
                _send(self._group, command, rank, COMMAND_TAG)

    def _apply(self, move: StageMove) -> None:
        for number in move.evict:
            self._folder.remove(self._units[number])
            self._held.discard(number)
        unit, has_failed = self._units[move.unit], False
        for file in unit.files:
            has_failed |= not self._stage_file(unit, file, move.unit)
        if has_failed:
            self._folder.remove(unit)
            self._given_up.add(move.unit)
        else:
            self._held.add(move.unit)

    def _stage_file(self, unit: StageUnit, file: File, number: int) -> bool:
        """Stage one file; return whether it is complete. Collective, even with a full disk."""
        target = self._folder.folder_of(unit) / file.name
        part_path = target.with_name(f".{file.name}.part")
        fault, digest = "", hashlib.sha256()
        with contextlib.ExitStack() as stack:
            part = None
            try:
                for chunk in self._chunks(self._shared / unit.split, file, number):
                    digest.update(chunk)
                    if fault or self._is_full:  # others take the chunks from here all the same
                        continue
                    try:
                        part = part or stack.enter_context(part_path.open("wb", buffering=0))
                        part.write(chunk)
                    except OSError as error:
                        fault = os.strerror(error.errno or errno.EIO)
                        self._is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            except OSError as error:
                fault = f"cannot be read: {error.strerror or error}"
        if not fault and part is not None and digest.hexdigest() == file.sha256:
            part_path.rename(target)
            return True
        part_path.unlink(missing_ok=True)
        if fault or part is not None:
            self._notify(
                f"{unit.split}/{file.name} was not staged to {target.parent}: "
                f"{fault or 'the copy does not match the SHA-256 of the index'}; it is read from "
                f"{self._shared}"
            )
        return False

    def _chunks(self, folder: Path, file: File, number: int) -> Iterator[bytes | memoryview]:
        chunks = self._read(folder / file.name)
        if self._group is None:
            return chunks
        return chain_broadcast(self._group, number % self._group.size, chunks, file.bytes)

    def _read(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                self.read_bytes += len(chunk)
                yield chunk

    def _units_held_by_all(self, held: list[int]) -> set[int]:
        """Return the units that every node already holds from an earlier run; remove the others."""
        here = np.zeros(len(self._units), np.int64)
        here[held] = 1
        if self._group is not None:
            self._group.all_reduce(Buffer.of(here), ReduceOp.MIN)
        for number in held:
            if not here[number]:
                self._folder.remove(self._units[number])
        return set(np.flatnonzero(here).tolist())

    def _notify(self, notice: str) -> None:
        with self._lock:
            self._notices.append(notice)


def chain_broadcast(
    group: Group, root: int, chunks: Iterable[bytes], num_bytes: int
) -> Iterator[memoryview]:
    """Yield `num_bytes` that `root` reads, on every rank of the chain root, root + 1, …; each rank
    forwards a chunk before it yields it: a pipeline in which no rank sends a byte twice.

    chunks: of `CHUNK_BYTES`, the last one of what is left; used on `root` only.
    Cost: a rank sends each byte at most once; the last is `size` - 1 chunks behind the first.
    Raises: OSError on `root` from reading, at the end: its peers get zeros for what is missing.
    """
    before, after = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    source, fault = iter(chunks), None
    for start in range(0, num_bytes, CHUNK_BYTES):
        chunk = np.zeros(min(CHUNK_BYTES, num_bytes - start), np.uint8)
        if group.rank != root:
            _receive(group, chunk, before, CHUNK_TAG)
        elif fault is None:
            try:
                content = np.frombuffer(next(source, b""), np.uint8)[: len(chunk)]
                chunk[: len(content)] = content
            except OSError as error:
                fault = error
        if after != root:
            _send(group, chunk, after, CHUNK_TAG)
        yield chunk.data
    if fault is not None:
        raise fault


def _receive(group: Group, array: NDArray[Any], source: int, tag: int) -> None:
    _wait(group.receive(Buffer.of(array), source=source, tag=tag))


def _send(group: Group, array: NDArray[Any], dest: int, tag: int) -> None:
    _wait(group.send(Buffer.of(array), dest=dest, tag=tag))


def _wait(request: MessageRequest) -> None:
    """Poll with sleeps between, so that staging takes little time from training."""
    while not request.test():
        time.sleep(MESSAGE_POLL_S)
