"""End of a program's rank that fails: once, with its reason, and not alone.

Its peers wait for it in a collective, and would learn of it by a timeout only.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from phalanx.comm.abort import abort
from phalanx.comm.errors import PeerFailedError
from phalanx.errors import UserError
from phalanx.jobs.detect import detect
from phalanx.jobs.outcome import is_about_peer
from phalanx.jobs.rank_notes import NOTES
from phalanx.records.failures import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_UNWRITABLE, failure_of
from phalanx.records.files import write_failure
from phalanx.run.records import ProgramRecords
from phalanx.torch_backend.threads import refused_operation

ECHO_DELAY_S = 2.0
"""Time that rank 0 has to end the other ranks before they report the same."""

_PACKAGE = str(Path(__file__).parents[1])
_OPEN: weakref.WeakSet[ProgramRecords] = weakref.WeakSet()
_before: Any = sys.excepthook
_process_id = 0
"""Process that SIGTERM ends with closed records, and none that it has forked."""


def report_failures() -> None:
    """Make an uncaught exception end all ranks; a `UserError` is a line without a traceback, and
    exit code 2. An interactive session is left as it is."""
    if hasattr(sys, "ps1"):
        return
    _install()
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        global _process_id
        _process_id = os.getpid()
        signal.signal(signal.SIGTERM, end_as_asked)


@contextmanager
def ending_program() -> Iterator[None]:
    """Let an error of the block end all ranks, as an uncaught one does, and SIGTERM this one."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    report_failures()
    try:
        yield
    except KeyboardInterrupt:
        end_as_asked(signal.SIGTERM, None)
    except (Exception, SystemExit) as error:  # whatever it is, the others must not hang
        if isinstance(error, SystemExit) and type(error) is not SystemExit:
            raise  # the run has stopped, as it was asked to
        end_program(type(error), error, error.__traceback__)
        sys.exit(EXIT_FAILED)


def watch(records: ProgramRecords) -> None:
    """Write into `records` how the program ended, should it fail or leave its loop."""
    _OPEN.add(records)
    atexit.register(records.leave)


def end_as_asked(number: int, _frame: FrameType | None) -> None:
    """End this process by the signal; its records are closed as far as they can be written."""
    signal.signal(number, signal.SIG_IGN)  # a launcher sends it to this process and its group
    for records in _OPEN if os.getpid() == _process_id else ():
        records.end_as_asked(signal.Signals(number).name)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)  # not through MPI_Finalize, which would wait for peers


def _is_echo(error: BaseException) -> bool:
    """Return whether it follows from the failure of a peer, which that one reports, or the
    launcher: PyTorch's engines have the words alone."""
    in_words = isinstance(error, RuntimeError) and is_about_peer(str(error))
    return isinstance(error, PeerFailedError) or in_words


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
    is_echo = _is_echo(error)
    may_echo = is_echo or isinstance(error.__cause__, PeerFailedError)
    if may_echo or (is_mendable and launched and launched.rank):
        time.sleep(ECHO_DELAY_S)  # all ranks find what is wrong with the arguments: one says it
    exit_code = EXIT_BAD_INPUT if is_mendable else EXIT_FAILED
    for records in list(_OPEN):  # also of a run that has ended: it is not closed any more
        if not records.fail(error):
            exit_code = EXIT_UNWRITABLE
    if not (is_mendable or is_echo):
        _before(kind, error, trace)
    elif may_echo or not _is_noted(error):
        print(f"phalanx: {error}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if launched and launched.world_size > 1:
        abort(exit_code)
    if exit_code != EXIT_FAILED:  # else Python ends as it always does
        atexit._run_exitfuncs()
        os._exit(exit_code)


def _is_noted(error: BaseException) -> bool:
    """Return whether the command that started the ranks prints errors that the user can fix: they
    are recorded where it looks for them."""
    launched, folder = detect(os.environ), os.environ.get(NOTES)
    if folder is None or not isinstance(error, UserError):
        return False
    with suppress(OSError):
        write_failure(Path(folder), failure_of(error, launched.rank if launched else 0))
        return True
    return False


def refused_by_shards(error: BaseException) -> str | None:
    """Return the line for the user where the memory of a whole parameter was used after FSDP has
    freed it."""
    if not isinstance(error, RuntimeError) or "for storage of size 0" not in str(error):
        return None
    return (
        "a loss that differentiates twice (create_graph=True) needs full parameters, which "
        "zero_stage=2 and 3 release after the call of their module: use zero_stage=1, or "
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
