"""Run a rank's program on a node that lacks the folder of its records, and send them home.

Run as a program, `-m phalanx.launch.relay <word>...`, with `ORDER` in its environment. Where the
folder is there, it becomes the program. Elsewhere the program gets a temporary folder of this node
in its place, and what it writes into it leaves by standard output, which every launcher forwards.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pwd
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from phalanx.launch.detect import detect
from phalanx.launch.frames import frames_of
from phalanx.launch.orphan import end_with_parent
from phalanx.launch.relayed import ACKNOWLEDGED, CONTROL, RELAYED
from phalanx.launch.temporary import job_folder
from phalanx.launch.transport import skip_unneeded_networks

ORDER = "PHALANX_RELAY"
OUTPUT = ".output"
"""Name of the program's own output among the files."""
ERROR = "error.json"
ENDED = "ended"
HELLO = "hello"
TELLS_END = "PHALANX_TELLS_END"
"""Key of the frames, for a program that sends the frame of its own end: no relay does it."""
_EXIT_NOT_FOUND = 127
_SCAN_EVERY_S = 0.25
_WRITE_BYTES = 4096
"""Of one write: atomic in a pipe."""


class Order(NamedTuple):
    """Where the records belong."""

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

    def encode(self) -> str:
        """Return the value of `ORDER`."""
        return base64.b64encode(zlib.compress(json.dumps(self).encode())).decode()

    @classmethod
    def decode(cls, text: str) -> Order:
        return cls(*json.loads(zlib.decompress(base64.b64decode(text))))


class RankEnd(NamedTuple):
    """End of a relayed rank's process, in a file `ended` of its rank."""

    exit_code: int
    """Negative for a signal."""


def end_frame(key: str, rank: int, exit_code: int) -> bytes:
    """Return the line that tells how a rank's process ended."""
    return b"".join(
        frames_of(key.encode(), rank, ENDED, 0, 0, json.dumps(RankEnd(exit_code)).encode())
    )


class _Sent(NamedTuple):
    """State of a file that was sent."""

    inode: int
    version: int
    num_bytes: int


class _Sender:
    """Sends what is new in a folder."""

    def __init__(self, folder: Path, rank: int, order: Order) -> None:
        self._folder, self.rank, self._home, self.key = folder, rank, order.folder, order.key
        self._sent: dict[str, _Sent] = {}
        self._output_bytes = 0

    def know(self, name: str) -> None:
        """Take a file as sent."""
        state = (self._folder / name).stat()
        self._sent[name] = _Sent(state.st_ino, 0, state.st_size)

    def send_new(self) -> None:
        """Send what the files have got since the last call. Raises: OSError without a reader."""
        for path in sorted(self._folder.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                if not path.name.startswith(".") and path.is_file():
                    self._send_file(path)

    def _send_file(self, path: Path) -> None:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            sent = self._sent.get(path.name)
            if sent is None:
                sent = _Sent(state.st_ino, 0, 0)
            elif sent.inode != state.st_ino or state.st_size < sent.num_bytes:
                sent = _Sent(state.st_ino, sent.version + 1, 0)
            elif state.st_size == sent.num_bytes:
                return
            file.seek(sent.num_bytes)
            data = file.read()
        self._sent[path.name] = sent._replace(num_bytes=sent.num_bytes + len(data))
        if path.name == ERROR:  # written whole
            data = data.replace(str(self._folder).encode(), self._home.encode())
        self.send(path.name, data, version=sent.version, offset=sent.num_bytes)

    def send(self, name: str, data: bytes, *, version: int = 0, offset: int = 0) -> None:
        """Send a chunk of a file, or a file of its own."""
        lines = b"".join(frames_of(self.key.encode(), self.rank, name, version, offset, data))
        for start in range(0, len(lines), _WRITE_BYTES):
            _write(lines[start : start + _WRITE_BYTES])

    def send_output(self, data: bytes) -> None:
        self.send(OUTPUT, data, offset=self._output_bytes)
        self._output_bytes += len(data)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


class _Program:
    """The program of the rank, its output, and a socket by which it asks that all be sent."""

    def __init__(self, words: list[str], local: Path, environment: dict[str, str]) -> None:
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._control = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):  # a path that is too long: then nothing is urgent
            self._control.bind(str(local / CONTROL))
            self._control.listen()
        # MPICH and Intel MPI connect a rank to its launcher by an open descriptor (PMI_FD).
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            close_fds=False,
        )
        assert self.process.stdout is not None
        self._output: int | None = self.process.stdout.fileno()

    def wait(self) -> tuple[bytes, socket.socket | None]:
        """Wait for output, a request or the end, at most `_SCAN_EVERY_S`; return the first two."""
        sources: list[int | socket.socket] = [self._wake, self._control]
        ready, _, _ = select.select(
            [*sources, *([] if self._output is None else [self._output])], [], [], _SCAN_EVERY_S
        )
        if self._wake in ready:
            os.read(self._wake, 4096)
        asking = self._control.accept()[0] if self._control in ready else None
        return (self.read() if self._output in ready else b""), asking

    def read(self) -> bytes:
        """Return new output; empty at its end."""
        assert self._output is not None
        data = os.read(self._output, 1 << 16)
        if not data:
            self._output = None
        return data

    def rest(self) -> bytes:
        """Return the output that an ended program has left, not that of its children."""
        data = b""
        while self._output is not None and select.select([self._output], [], [], 0)[0]:
            data += self.read()
        return data


def _relay(order: Order, words: list[str], local: Path) -> int:
    """Run the program with `local` in place of the folder; return its exit code."""
    sender = _Sender(local, _rank(), order)
    for name, text in order.files.items():
        (local / name).write_text(text)
        sender.know(name)
    here = str(local)
    environment = {n: here if v == order.folder else v for n, v in os.environ.items()}
    environment[RELAYED] = json.dumps([order.folder, here])
    try:
        program = _Program([here if w == order.folder else w for w in words], local, environment)
    except OSError as error:
        text = f"phalanx: cannot start {words[0]} on {socket.gethostname()}: {error.strerror}\n"
        sender.send_output(text.encode())
        return _EXIT_NOT_FOUND

    def pass_on(number: int, _frame: FrameType | None) -> None:
        program.process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    try:
        _send_while_running(program, sender)
    except OSError:  # nobody reads: the launcher is gone, and so is the run
        program.process.kill()
        program.process.wait()
    return program.process.returncode


def _send_while_running(program: _Program, sender: _Sender) -> None:
    scanned_at = time.monotonic()
    while program.process.poll() is None:
        output, asking = program.wait()
        if output:
            sender.send_output(output)
        if asking is not None or time.monotonic() >= scanned_at + _SCAN_EVERY_S:
            sender.send_new()
            scanned_at = time.monotonic()
        if asking is not None:
            with asking, contextlib.suppress(OSError):
                asking.sendall(ACKNOWLEDGED)
    if output := program.rest():
        sender.send_output(output)
    sender.send_new()
    _write(end_frame(sender.key, sender.rank, program.process.returncode))


def _rank() -> int:
    launched = detect(os.environ)
    return launched.rank if launched else 0


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


def end_by_signal(number: int) -> None:
    """End this process by a signal, without another memory dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def main(words: list[str], here: Callable[[], int] | None = None) -> int:
    """Run `words`; does not return where the folder of the records is on this node.

    here: does there, in this process, what `words` would; its result is returned.
    """
    text = os.environ.pop(ORDER, None)
    order = None if text is None else Order.decode(text)
    if order is not None:
        key, host = order.key.encode(), socket.gethostname().encode()
        _write(b"".join(frames_of(key, _rank(), HELLO, 0, 0, host)))
        os.environ[TELLS_END] = order.key
        skip_unneeded_networks(os.environ)
        _use_own_user(order.host)
    if order is None or (Path(order.folder) / order.word).exists():
        if here is not None:
            return here()
        try:
            os.execvp(words[0], words)
        except OSError as error:
            print(f"phalanx: cannot start {words[0]}: {error.strerror}", file=sys.stderr)
            return _EXIT_NOT_FOUND
    del os.environ[TELLS_END]
    end_with_parent()
    with job_folder() as local:
        code = _relay(order, words, local)
    if code < 0:  # the launcher tells of a signal as if it had been its own rank's
        end_by_signal(-code)
        return 128 - code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
