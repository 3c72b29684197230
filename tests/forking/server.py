"""Runs each program that `python.py` asks for in a fork of a process that has imported PyTorch.

    python -m tests.forking.server <socket> <library>... <room>

Ends with its standard input, and its programs with it. Before the fork it imports no MPI, and
nothing of Phalanx beside the libraries: a program meets the rest as a new interpreter would.
"""

from __future__ import annotations

import array
import ast
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forking.ending import keep_modules, leave_out_destructors
from tests.forking.python import FORWARDED, NUMBER_BYTES

LIBRARIES = (
    "mpi4py",  # not mpi4py.MPI, which would initialise MPI
    "msgspec",
    "safetensors.torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.utils.data",
)
READ_AT_IMPORT = ("ATEN", "LD_PRELOAD", "MKL", "OMP_", "OPENBLAS", "PYTHON", "TORCH")
"""What the variables begin with that the interpreter and its libraries read as they start."""
READ_LATER = (
    *("PYTHONIOENCODING", "PYTHONPATH", "PYTHONUNBUFFERED", "TORCH_DEVICE_BACKEND_AUTOLOAD"),
    *("TORCH_DISTRIBUTED_DEBUG", "TORCHELASTIC_", "TORCHINDUCTOR_CACHE_DIR", "TORCH_NCCL_"),
)
"""Exceptions: read when a program begins or later. torchrun sets two, and PyTorch the folder, in
the process of the tests, too."""
HASH_SEED = b"PYTHONHASHSEED"
MOST_FILES = 250
ROOM = 4096
"""Bytes that the server is given as a last word, for the words of its programs."""
HIGH = 500
"""No program is handed a file by a number as high as this; the received ones are put there."""


@dataclass(frozen=True)
class Running:
    pid: int
    connection: socket.socket


class Server:
    """Forks a program for each connection; in the fork, `serve` returns the request."""

    def __init__(self, address: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(address)
        self._listening.listen(64)
        self._running: dict[int, Running] = {}  # by a descriptor that is readable when it ends
        print("ready", flush=True)

    def serve(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return the request in each fork, and None in the server when its input has ended."""
        while True:
            connections = {running.connection: end for end, running in self._running.items()}
            ready, _, _ = select.select([0, self._listening, *self._running, *connections], [], [])
            for source in ready:
                if source == 0:
                    return None
                if source is self._listening:
                    if (request := self._start()) is not None:
                        return request
                elif isinstance(source, int):
                    self._report_end(source)
                elif connections[source] in self._running:  # the client sends nothing: it has died
                    signal.pidfd_send_signal(connections[source], signal.SIGKILL)
                    self._report_end(connections[source])

    def _start(self) -> tuple[dict[str, Any], list[int]] | None:
        connection, _ = self._listening.accept()
        try:
            request, files = receive_request(connection)
        except OSError:  # the client was killed while it asked
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._leave(connection)
            return request, files
        for file in files:
            os.close(file)
        self._running[os.pidfd_open(pid)] = Running(pid, connection)
        send_number(connection, pid)
        return None

    def _leave(self, connection: socket.socket) -> None:
        """Close what the fork inherits of the server."""
        self._listening.close()
        connection.close()
        for end, running in self._running.items():
            os.close(end)
            running.connection.close()

    def _report_end(self, end: int) -> None:
        running = self._running.pop(end)
        _, status = os.waitpid(running.pid, 0)
        os.close(end)
        send_number(running.connection, status)
        running.connection.close()


def receive_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    room = socket.CMSG_SPACE(MOST_FILES * array.array("i").itemsize)
    header, messages, _, _ = connection.recvmsg(NUMBER_BYTES, room)
    files = array.array("i")
    for _, _, data in messages:
        files.frombytes(data)
    size = int.from_bytes(header, "little")
    document = connection.recv(size, socket.MSG_WAITALL)
    if len(header) < NUMBER_BYTES or len(document) < size:
        for file in files:
            os.close(file)
        raise ConnectionError("the client has been killed")
    return ast.literal_eval(document.decode()), list(files)


def send_number(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the client has been killed, and with it goes the program
        connection.sendall(number.to_bytes(NUMBER_BYTES, "little", signed=True))


def take_over(request: dict[str, Any], files: list[int]) -> None:
    """Take the files, cores, folder, environment and signals of the client."""
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, HIGH) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(high, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.sched_setaffinity(0, request["cores"])
    os.chdir(request["folder"])
    os.environb.clear()
    os.environb.update(request["environment"])
    for number in FORWARDED:
        ignored = number in request["ignored"]
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if ignored else default)
    os.setsid()
    show_in_proc([request["python"], *request["words"]], request["environment"])
    reopen_streams(unbuffered=request["unbuffered"] or bool(os.environ.get("PYTHONUNBUFFERED")))


def show_in_proc(words: list[str], environment: Mapping[bytes, bytes]) -> None:
    """Have `ps` and /proc show these words and variables: jobs and tests find what is left of a job
    by them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # From arg_start to arg_end, and from env_start to env_end, see proc(5).
    variables = [name + b"=" + value for name, value in environment.items()]
    variables.sort(key=lambda variable: not variable.startswith(b"PHALANX_"))  # if room is short
    for (begin, end), texts in (
        (map(int, fields[45:47]), [os.fsencode(word) for word in words]),
        (map(int, fields[47:49]), variables),
    ):
        shown = b"\0".join(texts)[: end - begin - 1]
        ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def reopen_streams(*, unbuffered: bool) -> None:
    """Have the streams ask anew what their files can do."""
    asked, _, handler = os.environ.get("PYTHONIOENCODING", "").partition(":")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        former = getattr(sys, f"__{name}__")
        encoding = asked or former.encoding
        errors = (handler or "strict") if asked and name != "stderr" else former.errors
        stream = open(  # noqa: SIM115
            number,
            mode="w" if number else "r",
            buffering=1 if name == "stderr" else -1,
            encoding=encoding,
            errors=errors,
            closefd=False,
        )
        if unbuffered and number:
            raw = open(number, mode="wb", buffering=0, closefd=False)  # noqa: SIM115
            stream = io.TextIOWrapper(raw, encoding=encoding, errors=errors, write_through=True)
        setattr(sys, name, stream)


def read_at_import(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    names, later = (
        tuple(name.encode() for name in prefixes) for prefixes in (READ_AT_IMPORT, READ_LATER)
    )
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(names) and not name.startswith(later)
    }


def is_forked(environment: Mapping[bytes, bytes], before: Mapping[bytes, bytes]) -> bool:
    """Return whether a program is what it would be in an interpreter of its own; one that names no
    seed of hashes takes any."""
    asked, given = read_at_import(environment), read_at_import(before)
    if HASH_SEED not in asked:
        given.pop(HASH_SEED, None)
    return asked == given


def run(request: dict[str, Any], before: Mapping[bytes, bytes]) -> None:
    """Do as the interpreter does with the words; the first path is that of the server.

    before: the variables of the server, which its libraries have read.
    """
    if not is_forked(os.environb, before):
        os.execv(sys.executable, [sys.executable, *request["words"]])
    words, sys.executable = request["words"], request["python"]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in named if folder and folder not in sys.path]
    import torch

    torch.distributed.set_debug_level_from_env()  # as `import torch.distributed` ends
    if torch._is_device_backend_autoload_enabled():
        torch._import_device_backends()  # as `import torch` ends
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    for number in FORWARDED:
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C ends pytest, which ends this
    before = dict(os.environb)
    for name in (*LIBRARIES, *sys.argv[2:-1]):
        importlib.import_module(name)
    leave_out_destructors()
    end = keep_modules()
    gc.freeze()
    asked = Server(sys.argv[1]).serve()
    if asked is not None:
        take_over(*asked)
        try:
            run(asked[0], before)
        except SystemExit as error:
            end.note(error.code)
            raise
        end.note(0)


if __name__ == "__main__":
    main()
