"""The process that owns a run, to tell whether a run recorded as running still runs."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from phalanx.records.schema import JobRecord, Owner

_PROCESSES = Path("/proc")


def this_process() -> Owner:
    """Describe this process as the owner of a run."""
    return Owner(
        hostname=socket.gethostname(),
        process_id=os.getpid(),
        process_began=_began(os.getpid()),
        system=_system(),
    )


def has_died(run: JobRecord) -> bool:
    """Return whether `run` says that it is running although its owner is gone.

    False wherever that cannot be told: on another machine, or in another container.
    """
    return run.outcome.status == "running" and is_alive(run.owner) is False


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
    """Ticks from the machine's boot to the start of a process; None where there is none, or a
    zombie."""
    try:
        fields = (_PROCESSES / str(process_id) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def _system() -> str | None:
    """The boot of the machine and the space of process ids, as one word."""
    try:
        boot = (_PROCESSES / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        return f"{boot} {(_PROCESSES / 'self' / 'ns' / 'pid').readlink()}"
    except OSError:
        return None
