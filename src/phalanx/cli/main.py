"""Entry point of `phalanx`: runs the command, prints errors in one line."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from phalanx.cli.program_words import separate_program
from phalanx.errors import (
    EXIT_LOST,
    EXIT_STOPPED,
    JobLostError,
    RunFailedError,
    RunStoppedError,
    StopTimeoutError,
    UserError,
    print_note,
    was_interrupted,
)
from phalanx.jobs.streams import prepare_streams

EXIT_RUN_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
MAX_SHOWN_CHARS = 200

EXTRA_OF = {
    **dict.fromkeys(("altair", "jinja2", "scipy", "sklearn", "vl_convert"), "study"),
    **dict.fromkeys(("h5py", "PIL", "pyarrow"), "data"),
    **dict.fromkeys(("google", "google.protobuf", "google_crc32c", "lmdb"), "formats"),
}
"""Packages that not everybody needs, and what installs them."""


def main(words: Sequence[str] | None = None) -> None:
    """Entry point of the `phalanx` command; ends the process with its exit code."""
    prepare_streams()
    handle_termination_signals()
    try:
        from phalanx.cli.app import app  # takes a second, in which Ctrl-C may come

        words = separate_program(sys.argv[1:] if words is None else words)
        app(words, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except SystemExit:  # carries the exit code, also for Ctrl-C within a command
        _silence_streams()
        raise
    except BaseException as raised:
        error = _missing_extra(raised) or raised
        exit_code = _exit_code(error)
        if exit_code is None:
            raise
        message = error_message(error)
        if message:
            print_note(message)
        _silence_streams()
        sys.exit(exit_code)


def handle_termination_signals() -> None:
    """Treat SIGTERM, SIGHUP and SIGQUIT as Ctrl-C: ranks are ended, records kept. A signal that is
    ignored (`nohup`) stays ignored."""
    for request in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(request) is not signal.SIG_IGN:
            signal.signal(request, signal.default_int_handler)


def error_message(error: BaseException) -> str:
    """Return the message of an error for the terminal; empty after Ctrl-C or a closed pipe."""
    match error:
        case KeyboardInterrupt() | BrokenPipeError():
            return ""
        case UnicodeError():
            what = getattr(error, "object", "")
            shown = f": {what!a}" if isinstance(what, str) and len(what) <= MAX_SHOWN_CHARS else ""
            return f"a name or a file is not valid UTF-8{shown}"
        case OSError():
            why = error.strerror or str(error) or type(error).__name__
            names = (error.filename, error.filename2)
            return ": ".join([*(os.fsdecode(n) for n in names if isinstance(n, str | bytes)), why])
        case _:
            return str(error)


def _exit_code(error: BaseException) -> int | None:
    """Return the exit code; None for a bug of Phalanx, whose traceback is shown."""
    if was_interrupted(error):
        return EXIT_INTERRUPTED
    from cyclopts import CycloptsError  # takes long, as in `main`

    match error:
        case StopTimeoutError():
            return EXIT_INTERRUPTED
        case RunStoppedError():
            return EXIT_STOPPED
        case JobLostError(has_saved=True):
            return EXIT_LOST
        case RunFailedError() | BrokenPipeError():
            return EXIT_RUN_FAILED
        case UserError() | OSError() | UnicodeError() | CycloptsError():
            return EXIT_BAD_INPUT
        case _:
            return None


def _silence_streams() -> None:
    """Drop unprinted output of a broken stream: Python would retry at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _missing_extra(error: BaseException | None) -> UserError | None:
    """Return an error for the user if an import failed because an extra is not installed."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
            if package in EXTRA_OF:
                return UserError(
                    f"this needs {package}, which is not installed: "
                    f"pip install 'phalanx[{EXTRA_OF[package]}]'"
                )
        error = error.__cause__
    return None
