"""The process that owns a run, to tell whether a run recorded as running still runs."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from phalanx.records.schema import JobRecord, Owner

SILENT_S = 900.0
"""Age of records, at least, at which a run is taken as ended: ranks may take minutes to start."""
_PROCESSES = Path("/proc")


def this_process() -> Owner:
    """Describe this process as the owner of a run."""
    return Owner(
        hostname=socket.gethostname(),
        process_id=os.getpid(),
        process_began=_began(os.getpid()),
        system=_system(),
    )


def has_died(run: JobRecord, folder: Path | None = None) -> bool:
    """Return whether `run` says that it is running although its owner is gone.

    Of an owner on another machine, or in another container, the age of the records in `folder`
    tells: those of a run that lives are never older than its ranks wait for each other.
    """
    if run.outcome.status != "running":
        return False
    alive = is_alive(run.owner)
    if alive is not None or folder is None:
        return alive is False
    timeout_s = run.config.get("timeout_s")
    limit_s = max(SILENT_S, 2 * timeout_s if isinstance(timeout_s, int | float) else 0.0)
    times = [path.stat().st_mtime for path in folder.glob("*.json*")]
    return time.time() - max(times, default=time.time()) > limit_s


def is_alive(owner: Owner | None) -> bool | None:
    """Return whether the process runs on this machine; None where that cannot be told."""
    here = this_process()
    if owner is None or owner.system is None:
        return None
    if (owner.hostname, owner.system) != (here.hostname, here.system):
        return None
    began = _began(owner.process_id)
    return began is not None and began == owner.process_began


def _began(process_id: int) -> str | None:
    """Return the ticks from boot to the start of a process; None: there is none, or a zombie."""
    try:
        fields = (_PROCESSES / str(process_id) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def _system() -> str | None:
    """Return the boot of the machine and the space of process ids, as one word."""
    try:
        boot = (_PROCESSES / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        return f"{boot} {(_PROCESSES / 'self' / 'ns' / 'pid').readlink()}"
    except OSError:
        return None
