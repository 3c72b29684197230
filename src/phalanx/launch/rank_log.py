"""Run a rank's program with its output in a file of its own, and note how it failed.

Run as a program, `-m phalanx.launch.rank_log <folder> <word>...`. That of the rank finds RANK,
WORLD_SIZE and the like, as under torchrun. On a node that lacks the folder it is relayed (`relay`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from phalanx.errors import EXIT_STOPPED
from phalanx.launch import relay
from phalanx.launch.binding import use_own_cores
from phalanx.launch.detect import detect
from phalanx.launch.listening import has_stopped
from phalanx.launch.rank_failure import (
    NOTES,
    RankFailure,
    failure_file,
    forget_reserved,
    note,
    reserve,
    write_end,
)
from phalanx.launch.relay import TELLS_END, end_by_signal, end_frame
from phalanx.launch.relayed import flush
from phalanx.launch.stray_daemon import end_frozen_daemons, end_stray_daemon
from phalanx.launch.survival import FAULT_TOLERANCE
from phalanx.launch.variables import set_variables

SHOWN = "--shown"
"""Word before a program whose output stays that of the launcher, and which sets up itself."""
_EXIT_NOT_FOUND = 127


def log_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank's output."""
    return folder / f"rank-{rank}.log"


def read_failures(folder: Path, *, deaths_first: bool = False) -> list[RankFailure]:
    """Return the failures of the ranks, the first first.

    deaths_first: of a job whose launcher kills nobody: those who saw a death come after it.
    A rank that a launcher ended because another had failed comes after that one: by a signal.
    """
    failures = [
        RankFailure(**json.loads(path.read_text())) for path in folder.glob("failed-*.json")
    ]

    def order(failure: RankFailure) -> tuple[bool, bool, float]:
        is_late = deaths_first and failure.exit_code >= 0
        return failure.exit_code == -signal.SIGTERM, is_late, failure.at_s

    return sorted(failures, key=order)


def has_failed(folder: Path, rank: int) -> bool:
    """Return whether a rank's process has failed or died."""
    return failure_file(folder, rank).exists()


def read_ends(folder: Path) -> dict[int, int]:
    """Return the exit codes of the ranks of a job with ULFM, negative for a signal, by rank."""
    found = folder.glob("finished-*")
    codes = {int(path.stem.split("-")[1]): int(path.read_text()) for path in found}
    return codes | {failure.rank: failure.exit_code for failure in read_failures(folder)}


def _run(folder: Path, words: list[str]) -> int:
    key = os.environ.pop(TELLS_END, None)
    is_shown = words[0] == SHOWN
    launched = detect(os.environ)
    rank = launched.rank if launched else 0
    if not is_shown:
        use_own_cores(os.environ)
        set_variables(os.environ)
    environment = {**os.environ, NOTES: str(folder)}
    reserve(folder, rank)
    with ExitStack() as stack:
        output = None if is_shown else stack.enter_context(log_file(folder, rank).open("ab"))
        program = words[1:] if is_shown else words
        try:
            # MPICH and Intel MPI connect a rank to its launcher by an open descriptor (PMI_FD).
            process = subprocess.Popen(
                program, stdout=output, stderr=output, env=environment, close_fds=False
            )
        except OSError as error:
            why = f"phalanx: cannot start {program[0]}: {error.strerror}\n"
            os.write(1 if output is None else output.fileno(), why.encode())
            note(folder, RankFailure(rank, _EXIT_NOT_FOUND, time.time()))
            return _EXIT_NOT_FOUND

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    end_frozen_daemons()
    code = process.wait()
    if code == -signal.SIGTERM and has_stopped(folder, rank):
        code = EXIT_STOPPED  # its launcher ends the others as soon as the first has ended so
    if code not in (0, EXIT_STOPPED):
        note(folder, RankFailure(rank, code, time.time()))
    if key is not None:
        with contextlib.suppress(OSError):
            os.write(1, end_frame(key, rank, code))
    if FAULT_TOLERANCE in os.environ:
        if code not in (0, EXIT_STOPPED):  # Open MPI tells the others of deaths by signals alone
            end_by_signal(-code if code < 0 else signal.SIGKILL)
        elif not is_shown:
            write_end(folder, rank, folder / f"finished-{rank}", str(code))
    with contextlib.suppress(OSError):
        forget_reserved(folder, rank)
    return code if code >= 0 else 128 - code


def note_abort(exit_code: int) -> None:
    """Write down that this rank is about to end all ranks, and have it sent where the folder is on
    another node; a daemon that has lost its launcher is ended later. Never raises."""
    with contextlib.suppress(OSError, ValueError):
        launched = detect(os.environ)
        if NOTES in os.environ and launched is not None:
            failure = RankFailure(launched.rank, exit_code, time.time())
            note(Path(os.environ[NOTES]), failure)
    flush()
    with contextlib.suppress(OSError):
        end_stray_daemon()


if __name__ == "__main__":
    again = [sys.executable, "-P", "-m", "phalanx.launch.rank_log", *sys.argv[1:]]
    sys.exit(relay.main(again, lambda: _run(Path(sys.argv[1]), sys.argv[2:])))
