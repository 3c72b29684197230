"""Waiting for a job whose records show that it goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import NamedTuple

from phalanx.launch.job import Job

POLL_INTERVAL_S = 0.1
START_S = 600.0
"""For ranks to begin, at least: on a busy machine, or from a slow network folder, the imports alone
take minutes."""


class Watched(NamedTuple):
    """The end of a job; as `phalanx.records.judging.Ending`."""

    exit_code: int | None
    rank: int | None
    silent_s: float


def watch(job: Job, update: Callable[[], bool], *, silent_s: float, has_launcher: bool) -> Watched:
    """Wait until the job has ended, or its ranks have been silent for too long.

    update: shows what is new in the records, and returns whether there was anything.
    silent_s: after which ranks that have begun are given up.
    has_launcher: the job is a launcher and its ranks, else every process of it is a rank.
    """
    heard_at, limit_s = time.monotonic(), max(silent_s, START_S)
    while (exit_code := job.poll()) is None:
        if update():
            heard_at, limit_s = time.monotonic(), silent_s
        elif time.monotonic() - heard_at > limit_s:
            return Watched(None, None, limit_s)
        time.sleep(POLL_INTERVAL_S)
    with contextlib.suppress(OSError, ValueError):  # a rank that died may have torn its records
        update()
    return Watched(exit_code, None if has_launcher else job.first_failed, limit_s)
