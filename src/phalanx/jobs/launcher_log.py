"""Output of ranks and their launcher outside the records: `launcher.log`."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable
from pathlib import Path

LAUNCHER_LOG = "launcher.log"

_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?:: .*)?$")
_OURS = "phalanx: "
LONGEST = 300
"""Characters of a last word that are shown."""
_MOST_LINES = 1000
"""Lines at the end of a log in which an exception is looked for."""
_NOT_STARTED = "PMIx server's listener thread failed to start"
_NOT_STARTED_CODE = 213
"""Exit code of Open MPI's launcher that has ended so before it has started a rank, once in
thousands of starts."""


def read_log(folder: Path) -> str:
    """Empty where there is none."""
    path = folder / LAUNCHER_LOG
    return path.read_text(errors="replace") if path.exists() else ""


def printed_error(log: Path) -> str | None:
    """Return the error that a process ended with and could not write down: what Phalanx printed of
    it, else the line below a traceback of Python. None where there is none: then it was killed, or
    MPI did not start."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    printed = (line.removeprefix(_OURS) for line in lines if line.startswith(_OURS))
    begins = [number for number, line in enumerate(lines) if line.startswith("Traceback (most")]
    below = lines[begins[0] + 1 :] if begins else []
    raised = (line for line in below if not line.startswith(" ") and _ERROR.match(line))
    line = next(printed, None) or next(raised, None)
    return None if line is None else _shortened(line)


def first_words(folder: Path, *, with_fix: bool = False) -> str | None:
    """Return the first sentence of the launcher's own, with the fix where one is known; None where
    it has said nothing. For ranks that have said nothing themselves.

    with_fix: None also where no fix is known.
    """
    log = read_log(folder)
    block = _BLOCK.search(log)
    lines = (line for line in log.splitlines() if line and not line.startswith((_OURS, "---")))
    text = " ".join(block[1].split()) if block else next(lines, None)
    fix = next((fix for pattern, fix in _FIXES if re.search(pattern, log)), None)
    if text is None or (with_fix and fix is None):
        return None
    return _shortened(text.rstrip(".")) + (f"; fix: {fix}" if fix else "")


_BLOCK = re.compile(r"^-{60,}\n(.+?)^-{60,}$", re.MULTILINE | re.DOTALL)
"""A report of Open MPI's launcher, between two lines."""
_FIXES = (
    (
        r"not enough space for /dev/shm",
        "Open MPI needs 16 MB of /dev/shm per rank: free some (phalanx doctor lists leftover "
        "files) or enlarge it (mount -o remount,size=1G /dev/shm, docker run --shm-size=1g)",
    ),
    (
        r"PMIX_ERR_FILE_WRITE_FAILURE|call to mkdir was unable|No space left on device",
        "the temporary folder of that node is full or not writable: free space in it, or choose "
        "another with TMPDIR",
    ),
)


def last_lines(log: Path, number: int) -> list[str]:
    """Return the last lines of a log; none where there is no log."""
    if not log.exists():
        return []
    with log.open(errors="replace") as file:
        return [line.rstrip() for line in deque(file, number)]


def last_exception(log: Path) -> str | None:
    """Return the line that names the last exception in the log of a rank, below its traceback, if
    it has one; None where there is none."""
    lines = last_lines(log, _MOST_LINES)
    begins = [number for number, line in enumerate(lines) if line.startswith("Traceback (most")]
    below = lines[begins[-1] + 1 :] if begins else filter(_ERROR.match, reversed(lines))
    return next((_shortened(line) for line in below if line and not line.startswith(" ")), None)


def _shortened(line: str) -> str:
    if len(line) <= LONGEST:
        return line
    return f"{line[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def has_not_started(folder: Path, exit_code: int | None) -> bool:
    """Return whether the launcher has ended by a fault of its own before it started any rank: the
    same command may well succeed."""
    return exit_code == _NOT_STARTED_CODE and _NOT_STARTED in read_log(folder)


def named_rank(folder: Path) -> int | None:
    """Return the rank whose end has made the launcher of Open MPI end the others; None where it
    names none, as those of other MPIs."""
    found = _NAMED_RANK.search(read_log(folder))
    return int(found[1]) if found else None


def lost_daemon(folder: Path) -> str | None:
    """Return the node whose daemon the launcher says to have lost, "one of these nodes" where it is
    that of MPICH, which names none; None where it says nothing."""
    found = _LOST_DAEMON.search(read_log(folder))
    if found is None:
        return None
    return next((name for name in found.groups() if name), "one of these nodes")


def disconnected_hosts(folder: Path, logs: Iterable[Path]) -> list[str] | None:
    """Return the nodes to which ranks say to have lost a connection, so far as they name them; None
    where none says so. logs: of ranks that MPI has ended."""
    log = "\n".join(
        [read_log(folder), *(line for log in logs for line in last_lines(log, _MOST_LINES))]
    )
    return _PEER_HOST.findall(log) if _DISCONNECTED.search(log) else None


def aborted_ranks(folder: Path) -> list[int]:
    """Ranks that called MPI_Abort, or for which MPI did, since they noticed something."""
    return [int(number) for number in _ABORTING_RANK.findall(read_log(folder))]


_DISCONNECTED = re.compile(
    r"An error occurred in Socket closed|peer process has unexpectedly\s+disconnected"
)
_PEER_HOST = re.compile(r"^  Peer host: +(\S+)$", re.MULTILINE)
_ABORTING_RANK = re.compile(r"\brank (\d+) with PID \d+ on node \S+ calling\s")
_LOST_DAEMON = re.compile(
    r"^  Remote daemon: .* on node (\S+)$"  # Open MPI: its connection was closed
    r"|^  Remote host: +(\S+)\n  Daemon exit status:"  # the ssh that ran it has ended
    r"|^\[mpiexec@.* control_cb .* assert \(!closed\) failed$"  # MPICH
    r"|^\[mpiexec@[^]]+\] Error: Downstream from host (\S+) exited abnormally$",  # Intel MPI
    re.MULTILINE,
)
_NAMED_RANK = re.compile(
    r"\bprocess rank (\d+) with PID \d+ on node \S+ (?!calling\s)"  # "calling": a survivor
)
_OUT_OF_MEMORY = ("std::bad_alloc", "Cannot allocate memory", "out of memory")
_KILLED, _ABORTED, _CRASHED = (
    frozenset({-number, 128 + number, number})  # the number itself: MPICH
    for number in (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV)
)


def explain_silence(folder: Path, exit_code: int | None, log: Path | None = None) -> str:
    """Return a sentence on why ranks ended that wrote no error down.

    log: of the rank that is certain to have ended first; the sentence goes on after a colon, and is
    empty where nothing is known.
    """
    is_of_rank, log = log is not None, log or folder / LAUNCHER_LOG
    words = printed_error(log)
    if words is not None and exit_code not in _KILLED:  # it cannot have printed that
        return f"{'the' if is_of_rank else 'The'} first error in {log.name}: {words}"
    text = read_log(folder) + (log.read_text(errors="replace") if log.exists() else "")
    lines = (line for line in text.splitlines() if any(words in line for words in _OUT_OF_MEMORY))
    found = next(lines, "").strip()
    launcher = None if is_of_rank else first_words(folder)
    if found:
        sentence = f"out of memory ({found})"
    elif exit_code in _ABORTED:
        sentence = "aborted (SIGABRT)"
    elif exit_code in _CRASHED:
        sentence = "crashed (SIGSEGV)"
    elif exit_code in _KILLED:
        sentence = "killed, perhaps because memory ran out"
    elif is_of_rank:
        return ""
    elif launcher is not None:
        sentence = f"the launcher's first output: {launcher}"
    else:
        sentence = "killed, perhaps because memory ran out, or MPI could not start"
    return sentence if is_of_rank else sentence[0].upper() + sentence[1:]
