"""Processes of a job, found by a token in their environment (Linux only).

Launchers put ranks into new sessions, and orphans get a new parent, so neither process groups nor
the process tree find them all.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

_PROCESSES = Path("/proc")
_DAEMON_NAMES = ("hydra_", "prted", "orted")


def processes_with(token: str) -> list[int]:
    """Return the ids of running processes with `token` in their environment."""
    wanted = token.encode()
    own = os.getpid()
    return [pid for pid in process_ids() if pid != own and wanted in _environment_of(pid)]


def process_ids() -> list[int]:
    """Return the ids of all visible processes; empty without /proc."""
    if not _PROCESSES.is_dir():
        return []
    return [int(folder.name) for folder in _PROCESSES.iterdir() if folder.name.isdecimal()]


def is_daemon(pid: int) -> bool:
    """Return whether `pid` is the daemon through which a launcher starts ranks on a node."""
    with contextlib.suppress(OSError):
        name = (_PROCESSES / str(pid) / "comm").read_text().strip()
        return name.startswith(_DAEMON_NAMES)
    return False


def mapped_files(pid: int) -> set[Path]:
    """Return the existing files that a process maps as shared memory."""
    with contextlib.suppress(OSError):
        lines = (_PROCESSES / str(pid) / "maps").read_text(errors="replace").splitlines()
        return {Path(path) for path in map(_shared_path, lines) if path is not None}
    return set()


def _shared_path(line: str) -> str | None:
    """Parse `7fb1-7fb2 rw-s 00000000 00:1b 70   /dev/shm/name`, where `s` means shared."""
    fields = line.split(maxsplit=5)
    is_file = len(fields) == 6 and fields[5].startswith("/") and not fields[5].endswith("(deleted)")
    return fields[5] if is_file and fields[1].endswith("s") else None


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL; ended processes are ignored."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _environment_of(pid: int) -> bytes:
    """Return the initial environment; empty for other users' processes, zombies and ended ones."""
    with contextlib.suppress(OSError):
        return (_PROCESSES / str(pid) / "environ").read_bytes()
    return b""
