"""Each launcher's variables, as they were seen in a process that it started."""

import pytest

from phalanx.errors import UserError
from phalanx.jobs.detect import Launched, detect, detect_mpi, how_to_start

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}
SRUN = ALLOCATION | {
    "SLURM_PROCID": "5",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
}
ONE_TASK = ALLOCATION | {
    "SLURM_NTASKS": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "PMIX_RANK": "0",
}
SHELL = ONE_TASK | {"SLURM_PTY_PORT": "41213"}  # of srun --pty bash
PMI2 = {"PMI_RANK": "5", "PMI_SIZE": "6", "PMI_FD": "9"}  # what srun --mpi=pmi2 adds
BARE = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN = BARE | {"TORCHELASTIC_RUN_ID": "none"}


def launched(launcher, rank, world_size, local_rank=None, local_world_size=None):
    return Launched(
        launcher=launcher,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
    )


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"PATH": "/bin"}, None),
        (OPENMPI, launched("openmpi", 2, 4, 0, 2)),
        (HYDRA, launched("hydra", 1, 2, 1, 2)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, launched("hydra", 0, 1)),
        ({"PMI_RANK": "0"}, None),
        (SRUN, launched("slurm", 5, 6, 1, 2)),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "3,2,1"}, launched("slurm", 5, 6, 1, 1)),
        (SRUN | PMI2, launched("slurm", 5, 6, 1, 2)),
        (SRUN | {"PMIX_RANK": "5"}, launched("slurm", 5, 6, 1, 2)),
        (ONE_TASK, launched("slurm", 0, 1, 0, 1)),
        (SHELL, None),
        (ONE_TASK | BARE, launched("torchrun", 3, 4, 1, 2)),  # ranks that the task has started
        (SHELL | BARE, launched("torchrun", 3, 4, 1, 2)),
        (BARE, launched("torchrun", 3, 4, 1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, launched("torchrun", 0, 1)),
    ],
)
def test_launchers(environ, expected):
    assert detect(environ) == expected


@pytest.mark.parametrize("step", [None, 0xFFFFFFFA, 0xFFFFFFFB, 0xFFFFFFFC])
def test_one_process_in_a_slurm_allocation_is_no_rank(step):
    shell = ALLOCATION if step is None else ALLOCATION | {"SLURM_STEP_ID": str(step)}
    assert detect(shell) is None


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        (ALLOCATION | OPENMPI, "openmpi"),  # mpirun in an allocation
        (SRUN | HYDRA, "hydra"),  # MPICH's mpiexec in an allocation: srun started Hydra's processes
        (SRUN | BARE, "slurm"),  # a container that sets RANK for itself
        (SRUN | TORCHRUN, "torchrun"),  # srun torchrun
        (OPENMPI | TORCHRUN, "torchrun"),
    ],
)
def test_the_innermost_launcher_counts(environ, launcher):
    found = detect(environ)
    assert found is not None
    assert found.launcher == launcher


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, "PMI_RANK='x' is not a number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1' is not a number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "torchrun says that this is rank 2 of 2"),
    ],
)
def test_nonsense_is_named(environ, message):
    with pytest.raises(UserError, match=message):
        detect(environ)


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        (OPENMPI, "openmpi"),
        (HYDRA, "hydra"),
        (SRUN | PMI2, "slurm"),
        (SRUN | {"PMIX_RANK": "5"}, "slurm"),
        (HYDRA | BARE, "hydra"),
        (SRUN, None),  # srun --mpi=none: each task is a job of one rank to MPI
        (ONE_TASK, None),  # a program without MPI, or a shell
        (SHELL, None),
        (ONE_TASK | OPENMPI, "openmpi"),  # mpirun in it
        (HYDRA | {"PMI_RANK": "0", "PMI_SIZE": "1"}, "hydra"),  # mpiexec -n 1: asked for
        (BARE, None),
        (OPENMPI | TORCHRUN, None),
        ({}, None),
    ],
)
def test_ranks_of_mpi_are_told_from_others(environ, launcher):
    found = detect_mpi(environ)
    assert (found.launcher if found else None) == launcher


def test_the_advice_names_the_kind_of_pmi():
    slurm, hydra = launched("slurm", 0, 2), launched("hydra", 0, 2)
    assert how_to_start(slurm, "Open MPI v5.0.11").endswith("srun --mpi=pmix")
    assert how_to_start(slurm, "MPICH Version: 5.0.2").endswith("srun --mpi=pmi2")
    assert "mpiexec of this MPI" in how_to_start(hydra, "Open MPI v5.0.11")
    torchrun = how_to_start(launched("torchrun", 0, 2), "Open MPI v5.0.11")
    assert 'init_process_group("mpi") first' in torchrun
