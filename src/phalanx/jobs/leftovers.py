"""Files that an MPI leaves behind when its processes are killed.

Open MPI keeps its segments under /dev/shm until `mpiexec` removes them, and on every node a session
folder `ompi.<process id>`; MPICH keeps one segment until a rank exits normally. Intel MPI unlinks
its files at once.

Run as a program, `leftovers.py <token>` ends the processes of a job on this node and removes their
files, and `leftovers.py <token> <host> <process id>` kills one of them where this is its host. It
needs the standard library only, so that a node gets it through standard input.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path

_PROCESSES = Path("/proc")
_DAEMON_NAMES = ("hydra_", "prted", "orted")
_TRACKER = b"from multiprocessing.resource_tracker import main"
TRACKERS_END_S = 2.0
"""Time for trackers to remove what others have left, once these are gone."""


def processes_with(token: str) -> list[int]:
    """Return the ids of running processes with `token` in their environment."""
    own = os.getpid()
    return [pid for pid in process_ids() if pid != own and belongs_to(pid, token)]


def belongs_to(pid: int, token: str) -> bool:
    """Return whether a running process has `token` in its environment."""
    return token.encode() in _environment_of(pid)


def process_ids() -> list[int]:
    """Return the ids of all visible processes; empty without /proc."""
    if not _PROCESSES.is_dir():
        return []
    return [int(name) for name in os.listdir(_PROCESSES) if name.isdecimal()]


def is_daemon(pid: int) -> bool:
    """Return whether `pid` is the daemon through which a launcher starts ranks on a node."""
    return name_of(pid).startswith(_DAEMON_NAMES)


def name_of(pid: int) -> str:
    """Return the name of a process, the first letters of its program's; empty of one that is
    gone."""
    with contextlib.suppress(OSError):
        return (_PROCESSES / str(pid) / "comm").read_text().strip()
    return ""


def parent_of(pid: int) -> int:
    """Return the id of a process's parent; 0 of one that has ended."""
    return int(_status_of(pid)[1])


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, though its parent may not know yet."""
    return _status_of(pid)[0] in "ZX"


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal (SIGSTOP), not by a debugger."""
    return _status_of(pid)[0] == "T"


def _status_of(pid: int) -> tuple[str, str]:
    """Return state and parent of a process, from `12 (its name) S 7 ...`."""
    with contextlib.suppress(OSError):
        text = (_PROCESSES / str(pid) / "stat").read_text()
        state, parent = text.rpartition(")")[2].split()[:2]
        return state, parent
    return "X", "0"


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


def kill(pids: Iterable[int], *, trackers: bool = False) -> None:
    """Send SIGKILL; ended processes are ignored.

    trackers: also to those that remove what Python's processes leave: they end after these.
    """
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if trackers or not _is_tracker(pid):
                os.kill(pid, signal.SIGKILL)


def _is_tracker(pid: int) -> bool:
    """Return whether a process is the one in which Python keeps the names of semaphores."""
    with contextlib.suppress(OSError):
        return _TRACKER in (_PROCESSES / str(pid) / "cmdline").read_bytes()
    return False


def _environment_of(pid: int) -> bytes:
    """Return the initial environment; empty for other users' processes, zombies and ended ones."""
    try:  # pathlib would take twice as long to scan all processes
        with open(f"{_PROCESSES}/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123
            return file.readall()
    except OSError:
        return b""


SHARED_MEMORY = Path("/dev/shm")

_SEGMENT_NAMES = re.compile(
    r"sm_segment\..+|vader_segment\..+|osc_sm\..+|open_mpi\..+"  # Open MPI
    r"|mpich_(shm|vci)_.+|mpich_shar_tmp.+|ucx_shm_posix_.+"  # MPICH and UCX
    r"|Intel_MPI_.+"
)
_SESSION_NAME = re.compile(r"ompi\.(\d+)")


def leftovers_of(pids: Iterable[int], launchers: Collection[int]) -> set[Path]:
    """Return the files that would remain if these processes of a job were killed now."""
    files = set().union(*(mapped_files(pid) for pid in pids))
    found = (segment_or_session(file, launchers) for file in files)
    return {path for path in found if path is not None}


def siblings(paths: Iterable[Path]) -> set[Path]:
    """Return the segments of the same jobs of Open MPI as these: a rank that dies as it starts
    leaves one that nobody has seen it map. Only where their ranks on this node have ended."""
    jobs = {path.name.rpartition(".")[0] for path in paths if path.name.startswith("sm_segment.")}
    names = [name for name in segment_names() if name.rpartition(".")[0] in jobs]
    return {path for name in names if _is_ours(path := SHARED_MEMORY / name)}


def segment_or_session(file: Path, launchers: Collection[int]) -> Path | None:
    """Return `file` if it is a segment, or the session folder of `launchers` that holds it."""
    if file.parent == SHARED_MEMORY and is_segment(file.name):
        return file
    for folder in file.parents:
        session = _SESSION_NAME.fullmatch(folder.name)
        if session and int(session[1]) in launchers:
            return folder
    return None


def is_segment(name: str) -> bool:
    """Return whether `name` is one that an MPI gives to its shared-memory segments."""
    return _SEGMENT_NAMES.fullmatch(name) is not None


def segment_names() -> list[str]:
    """Return the names of all MPI files in shared memory, of all users."""
    try:
        return [name for name in os.listdir(SHARED_MEMORY) if is_segment(name)]
    except OSError:
        return []


def remove(paths: Iterable[Path]) -> None:
    """Delete files and folders that still exist."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def abandoned_segments() -> list[Path]:
    """Return segments of this user that no visible process maps any more."""
    own = [path for name in segment_names() if _is_ours(path := SHARED_MEMORY / name)]
    if not own:
        return []
    in_use = set().union(*(mapped_files(pid) for pid in process_ids()))
    return sorted(path for path in own if path not in in_use)


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_uid == os.geteuid()
    return False


END_WITHIN_S = 5.0


def end_all(token: str) -> list[int]:
    """Kill the processes with `token` in their environment and remove their files; return the ids
    of those that cannot be killed."""
    began, files = time.monotonic(), set[Path]()
    while (pids := processes_with(token)) and (elapsed := time.monotonic() - began) < END_WITHIN_S:
        files |= leftovers_of(pids, pids)
        kill(pids, trackers=elapsed > TRACKERS_END_S)
        time.sleep(0.02)
    remove(files)
    return pids


def kill_process(token: str, pid: int) -> bool:
    """Kill one process with `token` in its environment, and let those above it go on, should they
    be stopped as well; return whether it was there."""
    if not belongs_to(pid, token):
        return False
    above, parents = pid, list[int]()
    while belongs_to(above := parent_of(above), token):
        if is_stopped(above):  # Open MPI's launcher passes SIGCONT on to all ranks
            parents.append(above)
    kill([pid])
    for parent in parents:
        with contextlib.suppress(OSError):
            os.kill(parent, signal.SIGCONT)
    return True


def main(words: list[str]) -> None:
    """Print which processes are left, or that one was killed. words: those of the command line."""
    if len(words) == 1:
        print(*end_all(words[0]))
    elif words[1] == socket.gethostname() and kill_process(words[0], int(words[2])):
        print("killed")


if __name__ == "__main__":
    main(sys.argv[1:])
