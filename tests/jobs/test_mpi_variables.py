"""Variables that MPI needs in a rank, before it is loaded: its transport, and what `srun` lacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.jobs.detect import Launched, detect
from phalanx.jobs.installation import MpiInstallation, Vendor, find_mpi, find_wheel
from phalanx.jobs.mpi_variables import (
    MPICH_TRANSPORT,
    prepare_mpi,
    skip_unneeded_networks,
    variables_for,
)
from tests.conftest import PATIENCE

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


def of_task(vendor: Vendor, environ: dict[str, str]) -> dict[str, str]:
    """Return the variables of a task of `srun` on one of several nodes."""
    launched = detect(TASK | environ)
    assert launched is not None
    return variables_for(wheel(vendor), launched, TASK | environ)


def test_open_mpi_is_told_where_it_is_and_how_to_prove_who_it_is() -> None:
    assert of_task("openmpi", PMIX) == PREFIXES | {"PMIX_MCA_psec": "native"}
    assert of_task("openmpi", {}) == PREFIXES
    assert of_task("openmpi", PMIX | {"PMIX_SECURITY_MODE": "munge"}) == PREFIXES
    given = {"OPAL_PREFIX": "/site", "PMIX_MCA_psec": "munge"}
    assert of_task("openmpi", PMIX | given) == {"PMIX_PREFIX": "/env"}


def test_mpich_is_not_started_where_it_would_abort() -> None:
    with pytest.raises(
        UserError, match=r"PMIx, which MPICH 5\.0 does not support: use srun --mpi=pmi2"
    ):
        of_task("mpich", PMIX)
    assert of_task("mpich", {}) == {MPICH_TRANSPORT: "ofi"}
    assert of_task("impi", PMIX) == {}


@pytest.mark.parametrize("local_world_size", [1, 2, None, 4])
def test_mpich_uses_libfabric_between_nodes(local_world_size: int | None) -> None:
    rank = Launched(launcher="hydra", rank=1, world_size=4, local_world_size=local_world_size)
    found = variables_for(wheel("mpich"), rank, {})
    assert found == ({} if local_world_size == 4 else {"MPIR_CVAR_CH4_NETMOD": "ofi"})
    assert variables_for(wheel("impi"), rank, {}) == {}


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
    environ |= {"OMPI_MCA_btl": "self,tcp"}
    before = dict(environ)
    prepare_mpi(environ)
    assert environ == before


def test_a_task_is_prepared_by_the_mpi_of_this_environment() -> None:
    found = find_wheel()
    if found is None:
        pytest.skip("no MPI from PyPI")
    environ = TASK | PMIX
    if found.vendor == "mpich":
        with pytest.raises(UserError):
            prepare_mpi(environ)
        return
    prepare_mpi(environ)
    launched = detect(TASK | PMIX)
    assert launched is not None
    expected = TASK | PMIX | variables_for(found, launched, TASK | PMIX)
    assert {name: text for name, text in environ.items() if name != "OMPI_MCA_btl"} == expected
    if found.vendor == "openmpi":
        assert (Path(environ["OPAL_PREFIX"]) / "share" / "pmix").is_dir()


@pytest.mark.parametrize("chosen", [{MPICH_TRANSPORT: "ucx"}, {"MPI4PY_LIBMPI": "/site/libmpi.so"}])
def test_a_choice_of_the_user_stays(chosen: dict[str, str]) -> None:
    ranks = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}
    environ = ranks | chosen
    prepare_mpi(environ)
    assert environ == ranks | chosen


@pytest.mark.parametrize("device", [None, "sys/class/infiniband", "sys/class/cxi"])
def test_open_mpi_searches_for_devices_only_where_there_are_any(
    tmp_path: Path, device: str | None
) -> None:
    """It slept for a second in the search, of every rank on several nodes."""
    rank = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    if device is not None:
        (tmp_path / device).mkdir(parents=True)
    environ = dict(rank)
    skip_unneeded_networks(environ, tmp_path)
    assert environ == rank | ({} if device else {"OMPI_MCA_btl": "^ofi"})
    here = rank | {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    environ = dict(here)
    skip_unneeded_networks(environ, tmp_path)
    assert environ == here | {"OMPI_MCA_btl": "self,sm"}
    chosen = here | {"OMPI_MCA_btl": "self,tcp"}
    for environ in (dict(chosen), {"PMI_RANK": "1", "PMI_SIZE": "2"}, {}):
        before = dict(environ)
        skip_unneeded_networks(environ, tmp_path)
        assert environ == before


LISTENING = """
import os
from pathlib import Path
from phalanx.comm.mpi import mpi
mpi().COMM_WORLD.Barrier()
links = [os.readlink(p) for p in Path("/proc/self/fd").iterdir() if p.is_symlink()]
rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").open()][1:]
print("listens:", [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links])
"""


@pytest.mark.mpi
def test_ranks_of_a_plain_mpirun_listen_nowhere() -> None:
    """They listened on 0.0.0.0 and [::], where docs/launching.md said that none did."""
    mpi = find_mpi(os.environ)
    if mpi.vendor != "openmpi":
        pytest.skip("MPICH and Intel MPI open no port on one node")
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    done = subprocess.run(
        [mpi.mpiexec, "-n", "2", "--oversubscribe", sys.executable, "-c", LISTENING],
        env={**os.environ, **dict.fromkeys(names, "1")},
        capture_output=True,
        text=True,
        timeout=90 * PATIENCE,
    )
    assert done.stdout.splitlines() == ["listens: []"] * 2, done.stderr
