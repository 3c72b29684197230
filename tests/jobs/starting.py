"""Ranks that run programs/rank.py, and the questions that tests ask about them."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from phalanx.jobs.command import Command, local_commands, mpi_job
from phalanx.jobs.installation import find_mpi

RANK = str(Path(__file__).parent / "programs" / "rank.py")


def mpi_ranks(ranks: int, marker: str, behaviour: str) -> list[Command]:
    program = [sys.executable, RANK, marker, behaviour]
    installation = find_mpi(os.environ)
    return [mpi_job(installation, ranks, program, environ=os.environ)]


def local_ranks(ranks: int, marker: str, behaviour: str) -> list[Command]:
    program = [sys.executable, RANK, marker, behaviour, "alone"]
    return local_commands(ranks, program, environ=os.environ)


def processes(marker: str) -> list[psutil.Process]:
    """Living processes with `marker` among their words: launchers and ranks."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if marker in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def ranks_of(marker: str) -> list[psutil.Process]:
    return [p for p in processes(marker) if Path(p.info["cmdline"][0]).name.startswith("python")]


def wait_until(condition: Callable[[], object], timeout_s: float = 20.0) -> bool:
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
