"""Ranks of a measurement, which are launched as a program of the user's is.

The program gets its options as JSON and, by PHALANX_RUN_DIR, the folder of its records. Here their
events are followed; whoever starts them imports neither torch nor MPI.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.errors import UserError
from phalanx.jobs.installation import MpiInstallation
from phalanx.jobs.launch_program import launch_program, program_words
from phalanx.jobs.relayed import local_folder
from phalanx.records.events import Event
from phalanx.records.failures import EXIT_BAD_INPUT
from phalanx.run.defaults import RUN_DIR


def run_ranks(
    module: str,
    options: Mapping[str, Any],
    folder: Path,
    *,
    ranks: int,
    threads: int | None,
    mpi: MpiInstallation | None,
    show: Callable[[Event], None],
) -> None:
    """Run `python -m module OPTIONS` on new ranks, with records and logs in `folder`.

    threads, mpi: as of `launch_program`. show: takes each event of rank 0 as it comes.
    Raises: RunFailedError or UserError, as `launch_program`.
    """

    def show_all(events: list[Event]) -> None:
        for event in events:
            show(event)

    launch_program(
        folder,
        program_words(["-m", module, json.dumps(options, default=str)]),
        ranks=ranks,
        threads=threads,
        mpi=mpi,
        show=show_all,
        environment={RUN_DIR: str(folder.absolute())},
    )


@contextmanager
def launched_rank() -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the options and the folder of the records of a rank that `run_ranks` started.

    A UserError in the block ends the rank with the exit code of bad input.
    """
    folder = Path(os.environ[RUN_DIR])
    try:
        yield json.loads(sys.argv[1]), local_folder(folder) or folder
    except UserError as error:
        print(f"phalanx: {error}", file=sys.stderr, flush=True)
        sys.exit(EXIT_BAD_INPUT)
