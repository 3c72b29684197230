"""Run a rank's program with its output in a file of its own, and note how it ended.

Run as a program, `-m phalanx.jobs.rank_log <folder> <word>...`. That of the rank finds RANK,
WORLD_SIZE and the like, as under torchrun. On a node that lacks the folder it gets one of that node
in its place, whose files are sent home (`relay.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import FrameType

from phalanx.errors import EXIT_STOPPED
from phalanx.jobs.binding import use_own_cores
from phalanx.jobs.detect import detect
from phalanx.jobs.orphan import end_with_parent
from phalanx.jobs.rank_notes import (
    ASKED_TO_END,
    NOTES,
    RankEnd,
    end_file,
    has_stopped,
    note,
    reserve,
)
from phalanx.jobs.relay import Order, Sender
from phalanx.jobs.relayed import RELAYED, flush
from phalanx.jobs.stray_daemon import end_frozen_daemons, end_stray_daemon
from phalanx.jobs.survival import FAULT_TOLERANCE
from phalanx.jobs.temporary import job_folder
from phalanx.jobs.variables import set_variables

_EXIT_NOT_FOUND = 127


def log_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank's output."""
    return folder / f"rank-{rank}.log"


def _watch(folder: Path, words: list[str], rank: int, sender: Sender | None) -> int:
    """Run a rank's program to its end, and note how it ended; return its exit code, negative for a
    signal. sender: None: all ranks are on the launching node."""
    end_with_parent()
    use_own_cores(os.environ)
    set_variables(os.environ)
    environment = {**os.environ, NOTES: str(folder)}
    reserve(folder, rank)
    with log_file(folder, rank).open("ab") as log:
        try:
            process = subprocess.Popen(
                words,
                stdout=log,
                stderr=log,
                env=environment,
                close_fds=False,  # one connects a rank to MPICH's launcher (PMI_FD)
                preexec_fn=partial(end_with_parent, parent=os.getpid()),  # there is one thread
            )
        except OSError as error:
            log.write(f"phalanx: cannot start {words[0]}: {error.strerror}\n".encode())
            note(folder, RankEnd(rank, _EXIT_NOT_FOUND, time.time()))
            return _EXIT_NOT_FOUND

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    end_frozen_daemons()
    if sender is not None and sender.is_away:
        sender.send_while_running(process)
    code = process.wait()
    if code in ASKED_TO_END and has_stopped(folder, rank):
        code = EXIT_STOPPED  # its launcher ends the others as soon as the first has ended so
    with contextlib.suppress(OSError):
        note(folder, RankEnd(rank, code, time.time()))
    return code


def _run(order: Order | None, folder: Path, words: list[str]) -> int:
    """Run a rank where its folder is on this node, else with one of this node in its place; return
    its exit code."""
    launched = detect(os.environ)
    rank = launched.rank if launched else 0
    if order is None:
        return _watch(folder, words, rank, None)
    with nullcontext(folder) if order.is_here else job_folder() as here:
        sender = Sender(order, rank, here, launched.world_size if launched else 1)
        if sender.is_away:
            there, local = order.folder, str(here)
            words = [local if word == there else word for word in words]
            for name in [name for name, value in os.environ.items() if value == there]:
                os.environ[name] = local
            os.environ[RELAYED] = json.dumps([there, local])
        code = _watch(here, words, rank, sender)
        with contextlib.suppress(OSError):
            if sender.is_away:
                sender.send_new()
            else:  # a network file system may show it late
                sender.send_file(end_file(here, rank))
    return code


def main(words: list[str]) -> int:
    """Run a rank, and end as its launcher has to see it. words: of the command line."""
    code = _run(Order.take(), Path(words[0]), words[1:])
    if FAULT_TOLERANCE in os.environ and code not in (0, EXIT_STOPPED):
        # Open MPI tells the others of deaths by signals alone.
        end_by_signal(-code if code < 0 else signal.SIGKILL)
    return code if code >= 0 else 128 - code


def end_by_signal(number: int) -> None:
    """End this process by a signal, without another memory dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def note_abort(exit_code: int) -> None:
    """Write down that this rank is about to end all ranks, and have it sent where the folder is on
    another node; a daemon that has lost its launcher is ended later. Never raises."""
    with contextlib.suppress(OSError, ValueError):
        launched = detect(os.environ)
        if NOTES in os.environ and launched is not None:
            failure = RankEnd(launched.rank, exit_code, time.time())
            note(Path(os.environ[NOTES]), failure)
    flush()
    with contextlib.suppress(OSError):
        end_stray_daemon()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
