"""Records of ranks on nodes that lack the run's folder, taken from the output of the launcher."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from phalanx.errors import print_note
from phalanx.jobs.frames import Decoder, Frame, unpacker
from phalanx.jobs.launcher_log import LAUNCHER_LOG
from phalanx.jobs.relay import ORDER, Order
from phalanx.records.files import write_atomically
from phalanx.records.regular_file import is_component

DRAIN_TIMEOUT_S = 5.0
"""Time for what the launcher has written, once it has ended."""
SATURATED_S = 10.0
SATURATED = (
    "ranks write records faster than the launcher forwards them: they arrive late, but none is "
    "lost; a folder that all nodes share avoids this (--run-dir)"
)
_READ_BYTES = 1 << 20
_MAX_WAITING_BYTES = 16 << 20
_GROWS = (".jsonl", ".log")


class Files:
    """Files of a folder, put together from chunks."""

    def __init__(self, folder: Path, *, are_packed: bool = False) -> None:
        """are_packed: chunks are of a `Packer`."""
        self._folder, self._are_packed = folder, are_packed
        self._versions: dict[tuple[int, str], int] = {}
        self._contents: dict[tuple[int, str], bytearray] = {}  # files that are written whole
        self._sizes: dict[tuple[int, str], int] = {}
        self._unpackers: dict[tuple[int, str], zlib._Decompress] = {}
        self._waiting: dict[str, tuple[str, bytearray]] = {}
        self.num_waiting = 0
        """Bytes for files that grow, which `flush` writes."""

    def take(self, frame: Frame) -> None:
        """Take a chunk; one that does not continue its file is left out, as a killed rank's last
        line is. Raises: OSError when the folder cannot be written."""
        file = frame.rank, frame.name
        if file not in self._sizes and not is_component(frame.name):
            return
        grows = frame.name.endswith(_GROWS) and not frame.name.startswith("spans-")
        if frame.offset == 0:
            self._versions[file], self._sizes[file] = frame.version, 0
            self._contents[file] = bytearray()
            self._unpackers[file] = unpacker()
            if grows:
                self._waiting[frame.name] = "wb", bytearray()
        if (frame.version, frame.offset) != (self._versions.get(file), self._sizes.get(file)):
            return
        self._sizes[file] += len(frame.data)
        data = self._unpackers[file].decompress(frame.data) if self._are_packed else frame.data
        if grows:
            self._waiting.setdefault(frame.name, ("ab", bytearray()))[1].extend(data)
            self.num_waiting += len(data)
            return
        self._contents[file] += data
        if frame.is_last:
            self.flush()  # earlier frames must be written first
            path = self._folder / frame.name
            write_atomically(path, bytes(self._contents[file]), synced=False)

    def flush(self) -> None:
        """Write what files that grow have got. Raises: OSError, having written what it could."""
        waiting, self._waiting, self.num_waiting = self._waiting, {}, 0
        with contextlib.ExitStack() as stack:
            for name, (mode, data) in waiting.items():
                stack.callback(_write, self._folder / name, mode, data)


def _write(path: Path, mode: str, data: bytearray) -> None:
    with path.open(mode) as output:
        output.write(data)


class Collector:
    """Reads the output of a launcher in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._files, self.key = Files(folder, are_packed=True), secrets.token_hex(16)
        self._log = folder / LAUNCHER_LOG
        self._source, self.output = os.pipe()
        """`output`: descriptor for the launcher's output; close it once the launcher has it."""
        with contextlib.suppress(OSError):  # more than the system lets a user have
            fcntl.fcntl(self._source, fcntl.F_SETPIPE_SZ, _READ_BYTES)
        self._thread = threading.Thread(target=self._read, name="collector", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until all that an ended launcher has written is in the folder."""
        self.release()
        self._thread.join(DRAIN_TIMEOUT_S)

    def release(self) -> None:
        """Close our end of the launcher's output."""
        output, self.output = self.output, -1
        if output >= 0:
            os.close(output)

    def _read(self) -> None:
        decoder, idle_at, has_told = Decoder(self.key.encode()), time.monotonic(), False
        with self._log.open("ab", buffering=0) as log:
            while data := os.read(self._source, _READ_BYTES):
                for item in decoder.feed(data):
                    # A full disk must not stop the launcher; the outcome says what is missing.
                    with contextlib.suppress(OSError):
                        if isinstance(item, Frame):
                            self._files.take(item)
                        else:
                            log.write(item)
                now, is_idle = time.monotonic(), not select.select([self._source], [], [], 0)[0]
                if is_idle or self._files.num_waiting > _MAX_WAITING_BYTES:
                    with contextlib.suppress(OSError):
                        self._files.flush()
                idle_at = now if is_idle else idle_at
                if now > idle_at + SATURATED_S and not has_told:
                    has_told = True
                    print_note(SATURATED)
            log.write(decoder.close())
            with contextlib.suppress(OSError):
                self._files.flush()
        os.close(self._source)


@contextlib.contextmanager
def marked(folder: Path, key: str) -> Iterator[dict[str, str]]:
    """Mark a folder while a job runs, and yield the variable by which ranks send what they write to
    it. They find the records that it holds.

    key: of the frames, as the collector has it.
    """
    word = f".here-{secrets.token_hex(8)}"
    (folder / word).touch()
    try:
        content = {path.name: path.read_text() for path in folder.glob("*.json")}
        order = Order(str(folder.absolute()), word, content, key, socket.gethostname())
        yield {ORDER: order.encode()}
    finally:
        with contextlib.suppress(OSError):
            (folder / word).unlink()
