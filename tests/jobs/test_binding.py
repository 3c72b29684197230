"""Ranks that are bound to fewer cores than there are."""

import pytest

from phalanx.jobs import binding
from phalanx.jobs.allocation import THIS_MACHINE
from phalanx.jobs.binding import (
    OWN_POOLS,
    cores_of_rank,
    describe_binding,
    describe_places,
    pool_threads,
    thread_variables,
    use_own_cores,
)
from phalanx.jobs.cores import CpuQuota

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
    assert text.startswith("each rank is bound to 1 of the 64 cores of its node; 62 cores stay")
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


@pytest.mark.parametrize(("local_ranks", "threads"), [(1, 6), (4, 1), (8, 1)])
def test_a_rank_elsewhere_takes_the_cores_of_its_own_node(monkeypatch, local_ranks, threads):
    monkeypatch.setattr(binding, "bound_cores", lambda: frozenset(range(8)))
    monkeypatch.setattr(binding, "launcher_cores", lambda _: 8)
    monkeypatch.setattr(binding, "cpu_quota", lambda: CpuQuota(5.5, "0:1"))
    started = thread_variables(None, {"PHALANX_HOSTS": "elsewhere.invalid:8"})
    environ = {
        "PMI_RANK": "0",
        "PMI_SIZE": "8",
        "MPI_LOCALNRANKS": str(local_ranks),
        "OMP_NUM_THREADS": "2",
        **started,
    }
    assert use_own_cores(environ) == threads
    assert environ["OMP_NUM_THREADS"] == environ["MKL_NUM_THREADS"] == str(threads)
    for variable in ("OMPI_MCA_mpi_yield_when_idle", "I_MPI_THREAD_YIELD"):
        assert (variable in environ) == (local_ranks > 6)


def test_threads_that_are_named_stay():
    elsewhere = {"PHALANX_HOSTS": "elsewhere.invalid:8"}
    environ = thread_variables(3, elsewhere) | {"PMI_RANK": "0", "PMI_SIZE": "1"}
    assert use_own_cores(environ) is None
    assert environ["OMP_NUM_THREADS"] == "3"
    assert OWN_POOLS not in environ
    here = thread_variables(2, {})
    assert use_own_cores(here) is None
    assert set(here.values()) == {"2"}


@pytest.mark.parametrize(
    ("environ", "threads"),
    [
        ({}, None),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"MKL_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "4,2", "MKL_NUM_THREADS": "3"}, 4),
        ({"OMP_NUM_THREADS": ""}, None),
        ({"OMP_NUM_THREADS": "0", "OPENBLAS_NUM_THREADS": "many"}, None),
    ],
)
def test_a_pool_that_the_user_has_set_counts_for_all(
    environ: dict[str, str], threads: int | None
) -> None:
    """With OMP_NUM_THREADS=1 PyTorch computed in as many threads as a node has cores: MKL's pool
    was set to these, and is the one that PyTorch asks."""
    assert pool_threads(environ) == threads


def test_a_line_tells_of_ranks_that_take_turns(monkeypatch):
    """99 ranks were started on 2 cores without a word."""
    monkeypatch.setattr(binding, "usable_cores", lambda: 2)
    assert describe_places(4, THIS_MACHINE) == []
    words = "99 ranks share 2 cores of this machine; with --ranks 2 each rank has a core"
    assert describe_places(99, THIS_MACHINE) == [words]
