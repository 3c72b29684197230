"""Ranks from a cell of a notebook: `phalanx launch` runs a function of it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from phalanx.errors import RunFailedError, UserError
from phalanx.jobs import orphan
from phalanx.jobs.record import default_folder
from phalanx.records.files import record_file
from phalanx.records.schema import Run
from phalanx.run import notebook_rank

if TYPE_CHECKING:
    from typing import IO

Result = TypeVar("Result")
STOP_S = 60.0
"""Time for ranks to end after an interruption, before they are killed."""
PAGE_HEIGHT = 600
"""Height of a report in a cell, in pixels."""


def notebook(
    function: Callable[[], Result],
    *,
    ranks: int | None = None,
    threads: int | None = None,
    options: Sequence[str] = (),
    show_report: bool = True,
) -> list[Result]:
    """Call a function of a notebook on new ranks, and return what it returns on each.

    The function goes to the ranks with the functions, classes and values of the notebook that it
    uses, by cloudpickle; modules are imported there. The output of the first rank appears in the
    cell, as do errors of any, and the report of a run of `phalanx.start`. An interruption of the
    kernel ends the ranks; so does its death.

    Example::

        def train():
            run = phalanx.start(model, optimizer, data, batch_size=16, epochs=2)
            for batch in run:
                run.backward(criterion(run.model(batch.inputs), batch.targets))
            return model.state_dict()

        weights = phalanx.notebook(train, ranks=2, show_report=False)[0]

    Args:
        function: takes no arguments; `functools.partial` or a `lambda` gives it some.
        ranks: number of ranks. Default: one per core.
        threads: compute threads of each rank. Default: cores ÷ ranks.
        options: further ones of `phalanx launch`, such as `["--survive"]`.
        show_report: False: draw no report.

    Returns:
        Results of the ranks, by rank; of those that died under `--survive` there is none.

    Raises:
        UserError: the function, or a result, cannot be sent; arguments that `phalanx launch` does
            not take.
        RunFailedError: a rank has failed; its words are in the cell.
        KeyboardInterrupt: the cell was interrupted; no rank is left.
    """
    name = getattr(function, "__name__", "function").strip("<>")
    folder = default_folder("notebook", name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    numbers = {"ranks": ranks, "threads": threads}
    counted = [f"--{name}={number}" for name, number in numbers.items() if number is not None]
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as place:
        _write(Path(place) / notebook_rank.FUNCTION, function)
        words = ["launch", *counted, "--log-dir", str(folder), *options]
        exit_code = _phalanx([*words, "-m", notebook_rank.__name__, place])
        if show_report and record_file(folder, Run).exists():
            _show(folder)
        if exit_code:
            error = UserError if exit_code == 2 else RunFailedError
            raise error(f"phalanx.notebook: the ranks failed, see above: {folder}")
        results = sorted(Path(place).glob("result-*"), key=lambda path: int(path.name[7:]))
        return [pickle.loads(path.read_bytes()) for path in results]


def _write(path: Path, function: Callable[[], object]) -> None:
    try:
        import cloudpickle
    except ImportError:
        raise UserError(
            "phalanx.notebook needs cloudpickle to send functions: pip install cloudpickle"
        ) from None
    try:
        # Modules beside the notebook are found as there.
        paths = [str(Path(place).resolve()) for place in sys.path]
        path.write_bytes(pickle.dumps((paths, cloudpickle.dumps(function))))
    except (TypeError, pickle.PicklingError) as error:
        raise UserError(
            "phalanx.notebook: the function uses an object that cannot be sent to other processes "
            f"({error}): create it within the function"
        ) from error


def _phalanx(words: Sequence[str]) -> int:
    """Run a command, its output in the cell; return its exit code."""
    # Start a new session, since a kernel's interrupt would reach every rank at once.
    guard = [sys.executable, "-IS", orphan.__file__, str(int(signal.SIGTERM)), str(os.getpid())]
    # Not from the folder at hand: a user's json.py there would be imported.
    with subprocess.Popen(
        [*guard, sys.executable, "-P", "-m", "phalanx", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            _copy(process.stdout)
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            late = threading.Timer(STOP_S, process.kill)
            late.start()
            try:
                _copy(process.stdout)
            finally:
                late.cancel()
                process.kill()
            raise


def _copy(output: IO[str]) -> None:
    for line in output:
        print(line, end="", flush=True)


def _show(folder: Path) -> None:
    """Draw the report of a run and show it in the cell."""
    from IPython.display import HTML, display

    if _phalanx(["report", str(folder)]) == 0:
        page = (folder / "report.html").read_text()
        escaped = page.replace("&", "&amp;").replace('"', "&quot;")
        frame = f'<iframe srcdoc="{escaped}" width="100%" height="{PAGE_HEIGHT}"></iframe>'
        display(HTML(frame))
