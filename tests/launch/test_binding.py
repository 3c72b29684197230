"""Ranks that are bound to fewer cores than there are."""

import pytest

from phalanx.launch.binding import describe_binding

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
