"""Records of ranks on nodes that lack the run's folder, taken from the output of the launcher."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from phalanx.jobs.frames import Decoder, Frame
from phalanx.jobs.launcher_log import LAUNCHER_LOG
from phalanx.jobs.relay import ORDER, Order
from phalanx.records.files import write_atomically
from phalanx.records.regular_file import is_component

DRAIN_TIMEOUT_S = 5.0
"""Time for what the launcher has written, once it has ended."""
_READ_BYTES = 1 << 16
_GROWS = (".jsonl", ".log")


class Files:
    """Files of a folder, put together from chunks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions: dict[tuple[int, str], int] = {}
        self._contents: dict[tuple[int, str], bytearray] = {}  # of files that are written whole
        self._sizes: dict[tuple[int, str], int] = {}

    def take(self, frame: Frame) -> None:
        """Write a chunk; one that does not continue its file is left out, as a killed rank's last
        line is. Raises: OSError when the folder cannot be written."""
        if not is_component(frame.name):
            return
        file = frame.rank, frame.name
        if frame.offset == 0:
            self._versions[file], self._sizes[file] = frame.version, 0
            self._contents[file] = bytearray()
        if (frame.version, frame.offset) != (self._versions.get(file), self._sizes.get(file)):
            return
        self._sizes[file] += len(frame.data)
        path = self._folder / frame.name
        if frame.name.endswith(_GROWS) and not frame.name.startswith("spans-"):
            with path.open("wb" if frame.offset == 0 else "ab") as output:
                output.write(frame.data)
            return
        self._contents[file] += frame.data
        if frame.is_last:
            write_atomically(path, bytes(self._contents[file]), synced=False)


class Collector:
    """Reads the output of a launcher in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._files, self.key = Files(folder), secrets.token_hex(16)
        self._log = folder / LAUNCHER_LOG
        self._source, self.output = os.pipe()
        """`output`: descriptor for the launcher's output; close it once the launcher has it."""
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
        decoder = Decoder(self.key.encode())
        with self._log.open("ab", buffering=0) as log:
            while data := os.read(self._source, _READ_BYTES):
                for item in decoder.feed(data):
                    # A full disk must not stop the launcher; the outcome says what is missing.
                    with contextlib.suppress(OSError):
                        if isinstance(item, Frame):
                            self._files.take(item)
                        else:
                            log.write(item)
            log.write(decoder.close())
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
