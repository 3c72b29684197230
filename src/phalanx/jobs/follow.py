"""Processes of a job from their start to their end: watched, ended where they must be.

This process imports neither torch nor MPI, so it answers at once and outlives whatever happens to
the ranks.
"""

from __future__ import annotations

import contextlib
import math
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from phalanx.jobs.allocation import Allocation
from phalanx.jobs.collector import Collector, marked
from phalanx.jobs.command import Command
from phalanx.jobs.early_death import EarlyDeath
from phalanx.jobs.elsewhere import end_elsewhere
from phalanx.jobs.job import Job
from phalanx.jobs.launcher_log import LAUNCHER_LOG, has_not_started
from phalanx.jobs.outcome import JobExit
from phalanx.jobs.patience import Patience
from phalanx.jobs.rank_end import read_failures
from phalanx.jobs.state_clock import StateClock
from phalanx.jobs.stray_daemon import FROZEN_S
from phalanx.records.wait_reports import remove_reports

POLL_INTERVAL_S = 0.1
START_S = 600.0
"""Minimum time for ranks to start: imports alone may take minutes on a slow network file system."""
SLOW_START_S = 20.0
"""Time after which a line says that no rank has begun."""
FAILED_S = 4.0
"""Time for a launcher to end by itself after a rank has failed."""
LOST_GRACE_S = 1.0
"""Time for the processes of a launcher that does not."""


def follow(
    commands: Sequence[Command],
    folder: Path,
    nodes: Allocation,
    update: Callable[[], bool],
    *,
    ranks: int,
    has_launcher: bool,
    survive: bool = False,
    silent_s: float = math.inf,
    patience_s: float | None = None,
    grace_s: float | None = None,
    listens: Callable[[], bool] = lambda: True,
) -> tuple[JobExit, Job]:
    """Start the processes of a job and wait for them, once more where the launcher has ended by a
    fault of its own before any rank began.

    folder: of records and logs. update, has_launcher, silent_s: as of `watch`. survive: the others
    go on when a rank dies. patience_s: a rank that keeps others waiting for longer is killed.
    grace_s: for ranks that listen to save and stop after SIGTERM to this process; None: it ends
    them.
    Returns: how they ended, and the job that has.
    """
    slow_start = SlowStart(folder, nodes)
    early_death = EarlyDeath(folder, ranks) if survive else None

    def updated() -> bool:
        slow_start.tell()
        return update()

    for is_second in (False, True):
        with started(commands, folder, nodes) as job:
            if grace_s is not None:
                job.stop_on_termination(listens, grace_s, has_launcher=has_launcher)
            patience = Patience(folder, patience_s, job.token, nodes) if patience_s else None
            ending = watch(
                job,
                updated,
                silent_s=silent_s,
                has_launcher=has_launcher,
                has_failed=partial(must_end, folder, survive=survive),
                patience=patience,
                early_death=early_death,
            )
            if ending.exit_code is None and not ending.silent_s:
                job.end(LOST_GRACE_S)
        if is_second or not has_not_started(folder, ending.exit_code):
            break
        print(
            "phalanx: Open MPI's launcher failed before any rank began, and is started once more; "
            f"its words: {folder / LAUNCHER_LOG}",
            file=sys.stderr,
        )
    remove_reports(folder)
    return ending, job


class SlowStart:
    """A line on what a job waits for whose ranks do not begin, on other nodes."""

    def __init__(self, folder: Path, nodes: Allocation) -> None:
        self._folder, self._nodes = folder, nodes
        self._tells_at = time.monotonic() + SLOW_START_S if nodes.has_others else math.inf

    def tell(self) -> None:
        if time.monotonic() < self._tells_at:
            return
        self._tells_at = math.inf
        if any(self._folder.glob("rank-*")):
            return
        hosts = ",".join(node.name for node in self._nodes.nodes)
        print(
            f"phalanx: no rank has begun for {SLOW_START_S:g} s: waiting for nodes, whose logins "
            "may be slow or whose ports a firewall may close; it is examined by phalanx doctor "
            f"--hosts {hosts}",
            file=sys.stderr,
            flush=True,
        )


def must_end(folder: Path, *, survive: bool) -> bool:
    """Return whether the job must end soon: a rank has failed, and its launcher may not end the
    others, such as one without its daemon. With `survive` it need not for those that died."""
    return any(failure.exit_code >= 0 or not survive for failure in read_failures(folder))


@contextlib.contextmanager
def started(commands: Sequence[Command], folder: Path, nodes: Allocation) -> Iterator[Job]:
    """Start the processes of a job and end them with the block; all records are then in
    `folder`."""
    if not nodes.has_others:
        with Job.start(commands, folder / LAUNCHER_LOG) as local:
            yield local
        return
    collector = Collector(folder)
    job: Job | None = None
    try:
        with marked(folder, collector.key) as variables:
            there = [replace(c, environment={**c.environment, **variables}) for c in commands]
            with Job.start(there, folder / LAUNCHER_LOG, output=collector.output) as running:
                job = running
                collector.release()
                yield job
    except BaseException:
        if job is not None:
            end_elsewhere(nodes, job.token)
        raise
    finally:
        collector.wait()


def watch(
    job: Job,
    update: Callable[[], bool],
    *,
    silent_s: float,
    has_launcher: bool,
    has_failed: Callable[[], bool] = lambda: False,
    patience: Patience | None = None,
    early_death: EarlyDeath | None = None,
) -> JobExit:
    """Wait until the job has ended, its launcher is found frozen, or its ranks have written no
    records for too long.

    update: shows new records, and returns whether there were any.
    silent_s: timeout without records, once the ranks have started.
    has_launcher: the job is a launcher and its ranks, else every process is a rank.
    has_failed: returns whether a rank has failed; its launcher then has `FAILED_S` to end, which
    it never does without the connection to a node.
    """
    heard_at, limit_s = time.monotonic(), max(silent_s, START_S)
    failed_at: float | None = None
    frozen = StateClock()
    while (exit_code := job.poll()) is None:
        now = time.monotonic()
        if patience is not None:
            patience.check()
        if update():
            heard_at, limit_s = now, silent_s
        elif now - heard_at > limit_s:
            return JobExit(None, silent_s=limit_s)
        stopped = job.stopped() if has_launcher else ()
        if frozen.see(stopped or None, now) > FROZEN_S:
            return JobExit(None, reason=_frozen_text(stopped))
        if early_death is not None and (reason := early_death.why()):
            return JobExit(None, reason=reason)
        if failed_at is None and has_launcher and has_failed():
            failed_at = now
        if failed_at is not None and now > failed_at + FAILED_S:
            return JobExit(None)
        time.sleep(POLL_INTERVAL_S)
    with contextlib.suppress(OSError, ValueError):  # a rank that died may have torn its records
        update()
    reason = early_death.why(is_over=True) if early_death is not None and exit_code else ""
    return JobExit(exit_code, reason=reason)


def _frozen_text(launchers: Sequence[int]) -> str:
    pids = ", ".join(map(str, launchers))
    return (
        f"the launcher (process {pids} on {socket.gethostname()}) was stopped for {FROZEN_S:g} s "
        "(SIGSTOP), and was ended with its ranks"
    )
