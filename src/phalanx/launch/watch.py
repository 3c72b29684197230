"""Wait for a job, with a timeout on the progress of its records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import NamedTuple

from phalanx.launch.job import Job

POLL_INTERVAL_S = 0.1
START_S = 600.0
"""Minimum time for ranks to start: imports alone may take minutes on a slow network file system."""


class JobEnd(NamedTuple):
    """Exit of a job, with the fields of `phalanx.records.outcome.JobExit`."""

    exit_code: int | None
    rank: int | None
    silent_s: float


def watch(job: Job, update: Callable[[], bool], *, silent_s: float, has_launcher: bool) -> JobEnd:
    """Wait until the job has ended, or its ranks have written no records for too long.

    update: shows new records, and returns whether there were any.
    silent_s: timeout without records, once the ranks have started.
    has_launcher: the job is a launcher and its ranks, else every process is a rank.
    """
    heard_at, limit_s = time.monotonic(), max(silent_s, START_S)
    while (exit_code := job.poll()) is None:
        if update():
            heard_at, limit_s = time.monotonic(), silent_s
        elif time.monotonic() - heard_at > limit_s:
            return JobEnd(None, None, limit_s)
        time.sleep(POLL_INTERVAL_S)
    with contextlib.suppress(OSError, ValueError):  # a rank that died may have torn its records
        update()
    return JobEnd(exit_code, None if has_launcher else job.first_failed, limit_s)
