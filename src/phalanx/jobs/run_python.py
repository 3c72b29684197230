"""Run a rank's Python program so that a failure ends all ranks.

Run as a program, `run_python.py <program.py | -m module> <argument>...`. Python itself would let
MPI finalise after an uncaught exception, which waits, without end, for ranks that wait for this
one. Here MPI aborts, unless it is not in use.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.errors import EXIT_STOPPED
from phalanx.jobs.rank_notes import NOTES, RankEnd, note
from phalanx.jobs.stray_daemon import end_stray_daemon
from phalanx.jobs.streams import lose_what_the_disk_refuses

_GRACE_S = 1.0
"""Time for the peers to notice by themselves who has failed, and to say so."""
_OWN_FRAMES = (__file__, "<frozen runpy>", runpy.__file__)


def run(words: list[str]) -> None:
    """Run the program as `__main__`, and end the process with it."""
    sys.modules["__main__"] = main = ModuleType("__main__")
    try:
        if words[0] == "-m":
            sys.argv[:], sys.path[0] = words[1:], str(Path.cwd())
            runner: Any = runpy
            runner._run_module_as_main(words[1])
        else:
            file = Path(words[0]).absolute()
            sys.argv[:], sys.path[0] = words, str(file.resolve().parent)
            main.__file__ = str(file)
            code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
            exec(code, vars(main))
    except SystemExit as error:
        if error.code not in (None, 0, EXIT_STOPPED):
            sys.last_value = error  # so does Python for a shown error: the loop has not ended well
            atexit.register(_abort, error.code if isinstance(error.code, int) else 1)
        raise
    except KeyboardInterrupt:
        atexit.register(_abort, 1)
        raise
    except BaseException as error:  # noqa: BLE001  printed as Python does
        atexit.register(_abort, 1)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FRAMES:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def _abort(code: int) -> None:
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        if NOTES in os.environ:
            rank = mpi.COMM_WORLD.Get_rank()
            note(Path(os.environ[NOTES]), RankEnd(rank, code, time.time()))
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_GRACE_S)
        with contextlib.suppress(OSError):
            end_stray_daemon()
        mpi.COMM_WORLD.Abort(code)


if __name__ == "__main__":
    lose_what_the_disk_refuses()
    run(sys.argv[1:])
