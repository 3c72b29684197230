"""`phalanx train`."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from phalanx.launch.detect import detect
from phalanx.train.config import TrainConfig
from phalanx.train.job import run_job
from phalanx.train.run import complete, new_folder, this_command, title


def train(*, config: Annotated[TrainConfig, Parameter(name="*")] = TrainConfig()) -> None:  # noqa: B008  # frozen
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
    launched = detect(os.environ)
    if launched:
        from phalanx.train.rank import run_started_by_launcher  # imports torch

        run_started_by_launcher(config, launched)
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
    console.print(f"records in {folder}; `phalanx report {folder}` draws them", markup=False)
