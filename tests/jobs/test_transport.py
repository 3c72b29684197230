"""The transport between nodes, chosen before MPI is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.jobs.detect import Launched
from phalanx.jobs.installation import MpiInstallation, Vendor, find_mpi
from phalanx.jobs.transport import (
    MPICH_TRANSPORT,
    choose_transport,
    skip_unneeded_networks,
    variables_for_ranks,
)
from tests.conftest import PATIENCE


def wheel(vendor: Vendor) -> MpiInstallation:
    mpiexec = Path("/env/bin/mpiexec")
    return MpiInstallation(vendor=vendor, version="5.0", mpiexec=mpiexec, source="pypi")


def rank(local_world_size: int | None) -> Launched:
    return Launched(launcher="hydra", rank=1, world_size=4, local_world_size=local_world_size)


@pytest.mark.parametrize("local_world_size", [1, 2, None])
def test_mpich_uses_libfabric_between_nodes(local_world_size: int | None) -> None:
    found = variables_for_ranks(wheel("mpich"), rank(local_world_size))
    assert found == {"MPIR_CVAR_CH4_NETMOD": "ofi"}


def test_nothing_else_is_chosen() -> None:
    assert variables_for_ranks(wheel("mpich"), rank(4)) == {}
    assert variables_for_ranks(wheel("impi"), rank(2)) == {}
    assert variables_for_ranks(None, rank(2)) == {}


@pytest.mark.parametrize("chosen", [{MPICH_TRANSPORT: "ucx"}, {"MPI4PY_LIBMPI": "/site/libmpi.so"}])
def test_a_choice_of_the_user_stays(chosen: dict[str, str]) -> None:
    ranks = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}
    environ = ranks | chosen
    choose_transport(environ)
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
