"""End of a program's rank that fails: once, with its reason, and not alone.

Its peers wait for it in a collective, and would learn of it by a timeout only.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import sysconfig
import time
import traceback
import weakref
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from phalanx.comm.abort import abort
from phalanx.comm.errors import PeerFailedError
from phalanx.errors import UserError
from phalanx.jobs.detect import detect
from phalanx.records.failures import EXIT_BAD_INPUT, EXIT_FAILED
from phalanx.run.records import ProgramRecords
from phalanx.torch_backend.threads import refused_operation

ECHO_DELAY_S = 2.0
"""Time that rank 0 has to end the others, before they say the same."""

_PACKAGE = str(Path(__file__).parents[1])
_OPEN: weakref.WeakSet[ProgramRecords] = weakref.WeakSet()
_before: Any = sys.excepthook


def report_failures() -> None:
    """From now on an uncaught exception ends all ranks; a `UserError` is a line without a
    traceback, and exit code 2. An interactive session is left as it is."""
    if not hasattr(sys, "ps1"):
        _install()


def watch(records: ProgramRecords) -> None:
    """Write into `records` how the program ended, should it fail or leave its loop."""
    _OPEN.add(records)
    atexit.register(records.leave)


def open_records() -> list[ProgramRecords]:
    """Return the records of runs that have not ended."""
    return [records for records in _OPEN if not records.is_ended]


@cache
def _install() -> None:
    global _before
    _before, sys.excepthook = sys.excepthook, end_program


def end_program(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """End all ranks because of an error of this one, which is shown."""
    refused = refused_operation(error) or refused_by_shards(error)
    if refused is not None:
        error = UserError(refused).with_traceback(trace)
    if isinstance(error, UserError) and (place := line_of_program(trace)):
        located = UserError(f"{error} ({place})").with_traceback(trace)
        located.__cause__ = error.__cause__
        error = located
    is_mendable, launched = isinstance(error, UserError), detect(os.environ)
    if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:
        sys.stderr = sys.__stderr__  # the hook of PyTorch's process groups would write it later
    is_echo = isinstance(error, PeerFailedError)  # of an error that its rank reports itself
    may_echo = is_echo or isinstance(error.__cause__, PeerFailedError)
    if may_echo or (is_mendable and launched and launched.rank):
        time.sleep(ECHO_DELAY_S)  # all ranks find what is wrong with the arguments: one says it
    for records in list(_OPEN):  # also of a run that has ended: it is not closed any more
        records.fail(error)
    if is_mendable or is_echo:
        print(f"phalanx: {error}", file=sys.stderr, flush=True)
    else:
        _before(kind, error, trace)
    sys.stdout.flush()
    if launched and launched.world_size > 1:
        abort(EXIT_BAD_INPUT if is_mendable else EXIT_FAILED)
    if is_mendable:  # else Python ends as it always does
        atexit._run_exitfuncs()
        os._exit(EXIT_BAD_INPUT)


def refused_by_shards(error: BaseException) -> str | None:
    """Return the line for the user where the memory of a whole parameter was used after FSDP has
    freed it."""
    if not isinstance(error, RuntimeError) or "for storage of size 0" not in str(error):
        return None
    return (
        "a loss that differentiates twice (create_graph=True) needs whole parameters, and with "
        "zero_stage=2 and 3 they are gone after the call of their module: take zero_stage=1, or "
        'strategy="mpi"'
    )


def line_of_program(trace: TracebackType | None) -> str:
    """Return file and line where the program called what has failed; empty: it is not in there.

    The innermost frame that belongs to no library: a function that `run.evaluate` calls back
    counts, too.
    """
    frames = [f for f in traceback.extract_tb(trace) if not _is_library(f.filename)]
    return f"{_shown(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def _is_library(file: str) -> bool:
    folders = (_PACKAGE, *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    return file.startswith("<") or file.startswith(tuple(f"{folder}{os.sep}" for folder in folders))


def _shown(file: str) -> str:
    """Return a file's name as somebody in the working folder writes it."""
    here = os.path.relpath(file)
    return file if here.startswith(os.pardir) else here
