"""Send what a rank writes home from a node that lacks the folder of its records.

The rank gets a temporary folder of this node in its place, and what it writes into it leaves by the
standard output of the process that watches it (`rank_log.py`), which every launcher forwards.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pwd
import select
import signal
import socket
import subprocess
import time
import zlib
from pathlib import Path
from typing import NamedTuple, Self

from phalanx.jobs.detect import detect
from phalanx.jobs.frames import Packer, frames_of
from phalanx.jobs.mpi_variables import skip_unneeded_networks
from phalanx.jobs.relayed import ACKNOWLEDGED, CONTROL

ORDER = "PHALANX_RELAY"
ERROR = "error.json"
_SCAN_EVERY_S = 0.25
_MAX_PAUSE_S = 5.0
_READ_BYTES = 1 << 20
"""Bytes of a file that are in memory at once."""
_WRITE_BYTES = 4096
"""Size of one write: atomic in a pipe."""


class Order(NamedTuple):
    """Destination of the records."""

    folder: str
    """Absolute, on the launching node."""
    word: str
    """Name of a file that only this folder holds."""
    files: dict[str, str]
    """Files that the ranks read there, with their content."""
    key: str
    """Key of the job's frames; no program of the user's sees it."""
    host: str = ""
    """Name of the launching node."""

    @property
    def is_here(self) -> bool:
        """Return whether this node sees the folder."""
        return (Path(self.folder) / self.word).exists()

    def encode(self) -> str:
        """Return the value of `ORDER`."""
        return base64.b64encode(zlib.compress(json.dumps(self).encode())).decode()

    @classmethod
    def take(cls) -> Self | None:
        """Return the order of this process, which those below it do not see; None: there is none,
        and all ranks are on the launching node."""
        text = os.environ.pop(ORDER, None)
        if text is None:
            return None
        order = cls(*json.loads(zlib.decompress(base64.b64decode(text))))
        skip_unneeded_networks(os.environ)
        _use_own_user(order.host)
        return order


class _Sent(NamedTuple):
    """State of a file that was sent."""

    inode: int
    version: int
    num_bytes: int
    packer: Packer


def pause_s(rank: int, num_ranks: int) -> float:
    """Return the seconds between two pieces that a rank sends: the more ranks there are, the larger
    pieces, but of rank 0, whose records are shown. Pure."""
    return min(_SCAN_EVERY_S * (1 + num_ranks // 256 if rank else 1), _MAX_PAUSE_S)


class Sender:
    """Sends what a rank writes to where its records belong."""

    def __init__(self, order: Order, rank: int, folder: Path, num_ranks: int = 1) -> None:
        """folder: of this node, in place of that of the order, or that one itself."""
        self._order, self._rank, self._folder = order, rank, folder
        self._pause_s = pause_s(rank, num_ranks)
        self.is_away = folder != Path(order.folder)
        self._sent: dict[str, _Sent] = {}
        if self.is_away:
            for name, text in order.files.items():
                path = folder / name
                path.write_text(text)
                self._sent[name] = _Sent(path.stat().st_ino, 0, path.stat().st_size, Packer())

    def send_while_running(self, process: subprocess.Popen[bytes]) -> None:
        """Send what is new in the folder until the process has ended; also at once, whenever it
        asks for that. Without a reader the launcher is gone, and so is the run: it is killed."""
        wake, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        with socket.socket(socket.AF_UNIX) as control:
            with contextlib.suppress(OSError):  # a path that is too long: then nothing is urgent
                control.bind(str(self._folder / CONTROL))
                control.listen()
            try:
                self._send_until_end(process, wake, control)
            except OSError:
                process.kill()
                process.wait()

    def _send_until_end(
        self, process: subprocess.Popen[bytes], wake: int, control: socket.socket
    ) -> None:
        scanned_at, pause = time.monotonic(), self._pause_s
        while process.poll() is None:
            sources: list[int | socket.socket] = [wake, control]
            ready, _, _ = select.select(sources, [], [], pause)
            if wake in ready:
                os.read(wake, 4096)
            asking = control.accept()[0] if control in ready else None
            if asking is not None or time.monotonic() >= scanned_at + pause:
                began = time.monotonic()
                self.send_new()
                scanned_at = time.monotonic()
                # Send larger pieces if all ranks together write more than the launcher can take.
                pause = min(max(self._pause_s, 2 * (scanned_at - began)), _MAX_PAUSE_S)
            if asking is not None:
                with asking, contextlib.suppress(OSError):
                    asking.sendall(ACKNOWLEDGED)

    def send_new(self) -> None:
        """Send what the files have got since the last call. Raises: OSError without a reader."""
        for path in sorted(self._folder.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                if not path.name.startswith(".") and path.is_file():
                    self.send_file(path)

    def send_file(self, path: Path) -> None:
        """Send what a file has got since the last call. Raises: OSError without a reader, or where
        there is no such file."""
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            sent = self._sent.get(path.name)
            if sent is None:
                sent = _Sent(state.st_ino, 0, 0, Packer())
            elif sent.inode != state.st_ino or state.st_size < sent.num_bytes:
                sent = _Sent(state.st_ino, sent.version + 1, 0, Packer())
            elif state.st_size == sent.num_bytes:
                return
            file.seek(sent.num_bytes)
            is_first = True
            while (data := file.read(_READ_BYTES)) or is_first:
                is_first = False
                self._sent[path.name] = sent._replace(num_bytes=file.tell())
                if path.name == ERROR:  # written whole
                    data = data.replace(str(self._folder).encode(), self._order.folder.encode())
                is_last = file.tell() >= state.st_size
                self._send(path.name, data, sent, is_last=is_last)

    def _send(self, name: str, data: bytes, sent: _Sent, *, is_last: bool) -> None:
        """Send a piece of a file. is_last: of what the file has now."""
        key, offset = self._order.key.encode(), sent.packer.num_bytes
        packed = sent.packer.pack(data)
        lines = b"".join(
            frames_of(key, self._rank, name, sent.version, offset, packed, is_last=is_last)
        )
        for start in range(0, len(lines), _WRITE_BYTES):
            _write(lines[start : start + _WRITE_BYTES])


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _use_own_user(launching_host: str) -> None:
    """Set the variables of this node's user, where Hydra has taken those of the launching node's
    to another one. Within Slurm that is the same user."""
    launched = detect(os.environ)
    is_hydra = launched is not None and launched.launcher == "hydra"
    if not is_hydra or socket.gethostname() == launching_host or "SLURM_JOB_ID" in os.environ:
        return
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(os.getuid())
        names = dict.fromkeys(("USER", "LOGNAME"), user.pw_name)
        os.environ.update(names | {"HOME": user.pw_dir, "SHELL": user.pw_shell})
