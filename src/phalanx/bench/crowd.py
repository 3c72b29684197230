"""Busy processes beside the ranks, as on a machine shared with other programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phalanx.errors import RunFailedError
from phalanx.launch.command import Command
from phalanx.launch.job import Job

BUSY = (sys.executable, "-I", "-S", "-c", "while True: pass")


@contextmanager
def crowd(num_processes: int, log: Path) -> Iterator[None]:
    """Keep `num_processes` cores busy during the block.

    Raises: RunFailedError when one of the processes ended early.
    """
    if not num_processes:
        yield
        return
    with Job.start([Command(words=BUSY)] * num_processes, log) as job:
        yield
        if job.poll() is not None:
            raise RunFailedError(f"a busy process of --crowd ended early; its output: {log}")
