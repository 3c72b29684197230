"""`phalanx train`."""

from __future__ import annotations

import os

from rich.console import Console

from phalanx.cli.train_options import OPTIONS, Options
from phalanx.launch.detect import detect
from phalanx.report.trace.show import show_trace
from phalanx.train.job import run_job
from phalanx.train.run import complete, new_folder, this_command, title


def train(
    *,
    options: Options = OPTIONS,
) -> None:
    """Train a model: alone, over MPI or over Gloo.

    Phalanx starts the ranks itself; under mpirun, srun or torchrun it joins the ranks that these
    have started.

    For example:

        phalanx train

        phalanx train --model cnn --strategy mpi --ranks 2 --epochs 3

        phalanx train --strategy shared --ranks 2 --optimizer adamw --weight-decay 0.01

        phalanx train --strategy mpi --checkpoint-dir checkpoints --resume checkpoints

        mpirun -n 4 phalanx train --model rnn --strategy mpi
    """
    config = options.config()
    launched = detect(os.environ)
    if launched:
        from phalanx.train.rank import run_started_by_launcher  # imports torch

        folder = run_started_by_launcher(config, launched)
        if config.trace and launched.rank == 0 and folder is not None:
            show_trace(folder, Console(highlight=False, soft_wrap=True))
        return
    console = Console(highlight=False, soft_wrap=True)
    config, choice = complete(config, None)
    folder = config.run_dir or new_folder(config)
    console.print(f"{choice.reason}\n{title(config)}", markup=False)
    try:
        run_job(config, folder, study="train", command=this_command(), console=console)
    except KeyboardInterrupt:
        console.print(f"interrupted; records kept in {folder}", markup=False)
        raise
    finally:
        if config.trace:
            show_trace(folder, console)
    console.print(f"records in {folder}; `phalanx report {folder}` draws them", markup=False)
