"""`phalanx`: reads the words of the command line, calls one function, turns errors into a line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from phalanx import __version__
from phalanx.errors import RunFailedError, UserError

EXIT_RUN_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

app = App(
    name="phalanx",
    help="Train PyTorch models over MPI on the stock PyTorch wheel, every run measured.",
    version=__version__,
)
# A sub-command's module is read only when it is called, so that `--help` answers at once.
app.command("phalanx.cli.data:app", name="data", help="List the data sets, fetch MNIST, pack.")
app.command("phalanx.cli.train:train", name="train")
app.command("phalanx.cli.trace:trace", name="trace")
app.command("phalanx.cli.scratch:scratch", name="scratch")
app.command("phalanx.cli.study:app", name="study", help="Measure on this machine what to choose.")
app.command("phalanx.cli.bench:app", name="bench", help="Measure what Phalanx is made of.")
app.command("phalanx.cli.report:report", name="report")
app.command("phalanx.cli.doctor:doctor", name="doctor", help="Examine this machine.")


def main(words: Sequence[str] | None = None) -> None:
    """Entry point of the `phalanx` command; ends the process with its exit code."""
    # A batch system's request to end is as good as Ctrl-C: ranks are ended, records kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(words, exit_on_error=False, print_error=False)
    except (UserError, CycloptsError) as error:
        print(f"phalanx: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except RunFailedError as error:
        print(f"phalanx: {error}", file=sys.stderr)
        sys.exit(EXIT_RUN_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
