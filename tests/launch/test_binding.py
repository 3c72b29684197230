"""Ranks that are bound to fewer cores than there are."""

import pytest

from phalanx.launch import binding
from phalanx.launch.binding import cores_of_rank, describe_binding
from phalanx.launch.cores import CpuQuota

OMPI, SLURM = {"OMPI_COMM_WORLD_RANK": "0"}, {"SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("library", "environ", "flag"),
    [
        ("Open MPI v5.0.11", OMPI, "mpiexec --bind-to none"),
        ("Open MPI v5.0.11", OMPI | SLURM, "mpiexec --bind-to none"),  # mpiexec in an allocation
        ("MPICH Version: 5.0.2", {}, "mpiexec -bind-to none"),
        ("Intel(R) MPI Library 2021.18", {}, "I_MPI_PIN=0"),
        ("MPICH Version: 5.0.2", SLURM, "srun --cpus-per-task=N, or srun --cpu-bind=none"),
    ],
)
def test_idle_cores_are_named_with_the_flag_that_frees_them(library, environ, flag):
    text = describe_binding([{0}, {1}], 64, library, environ)
    assert text is not None
    assert text.startswith("each rank is bound to 1 of the 64 cores of its node, of which 62 stay")
    assert text.endswith(f": {flag}")


@pytest.mark.parametrize(
    ("ranks", "offered"),
    [
        ([{0}, {1}], 2),  # bound, and every core has a rank
        ([{0, 1, 2, 3}, {0, 1, 2, 3}], 4),  # not bound
        ([{0}, {1}], 0),  # unknown
        ([set(), set()], 4),  # a system that does not tell
    ],
)
def test_nothing_is_said_where_no_core_idles(ranks, offered):
    assert describe_binding(ranks, offered, "Open MPI v5.0.11", OMPI) is None


@pytest.mark.parametrize(
    ("own", "offered", "quota", "local_ranks", "cores"),
    [
        (64, 64, None, 4, 16),  # not bound
        (16, 64, None, 4, 16),  # srun -n 4 --cpus-per-task=16
        (1, 64, None, 2, 1),  # mpirun -n 2
        (64, 16, None, 4, 4),  # a job of 16 of 64 cores, which nothing keeps to them
        (16, 0, None, 4, 4),  # unknown
        (2, 2, None, 4, 1),
        (16, 64, 7.5, 4, 2),  # a container's time is for all ranks
    ],
)
def test_a_bound_rank_computes_on_its_own_cores(
    monkeypatch: pytest.MonkeyPatch,
    own: int,
    offered: int,
    quota: float | None,
    local_ranks: int,
    cores: int,
) -> None:
    monkeypatch.setattr(binding, "bound_cores", lambda: frozenset(range(own)))
    monkeypatch.setattr(binding, "cpu_quota", lambda: quota and CpuQuota(quota, "a"))
    environ = {"SLURM_CPUS_ON_NODE": str(offered), "SLURM_STEP_ID": "0"}
    assert cores_of_rank(local_ranks, environ) == cores
