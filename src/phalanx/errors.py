"""Errors that are shown to the user as a sentence instead of a traceback, and lines beside them."""

import contextlib
import sys


class UserError(ValueError):
    """A fault that the user can fix: bad input, missing data, a broken installation.

    The message is one or two lines: what was wrong, which value, what to do. The command line
    prints it after `phalanx:` and exits with code 2.

    Example::

        try:
            pack = phalanx.Pack(Path("no such folder"))
        except phalanx.UserError as error:
            print(error)
    """


class RunFailedError(RuntimeError):
    """A run that was started correctly has failed; the message says where, and names its records.

    The command line prints it after `phalanx:` and exits with code 1.

    Example::

        if not converged:
            raise phalanx.RunFailedError(f"no convergence after {steps} steps: see {folder}")
    """


class JobLostError(RunFailedError):
    """Ranks, their launcher or nodes were lost, by no failure of the program that is known."""

    has_saved = False
    """True if the run has written a checkpoint before, to resume from."""


EXIT_LOST = 71
"""Ranks or nodes were lost after a checkpoint; the same command goes on from it (`EX_OSERR`)."""
EXIT_STOPPED = 75
"""A run was stopped after a checkpoint, as asked; the same command goes on (`EX_TEMPFAIL`)."""


class RunStoppedError(Exception):
    """A run was stopped as asked, after a checkpoint."""


class StopTimeoutError(RunStoppedError):
    """A run was asked to stop, and was ended when it had not within its grace period."""


def was_interrupted(error: BaseException | None) -> bool:
    """Return whether `error` is Ctrl-C, or was raised while that was on its way.

    A terminal that was closed can no longer be written to.
    """
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def print_note(text: str) -> None:
    """Print a line after `phalanx: ` on standard error, which may be closed, or on a full disk."""
    with contextlib.suppress(OSError, ValueError):
        print(f"phalanx: {text}", file=sys.stderr, flush=True)
