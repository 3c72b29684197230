"""The transport between nodes, chosen before MPI is loaded."""

from pathlib import Path

import pytest

from phalanx.launch.detect import Launched
from phalanx.launch.installation import MpiInstallation, Vendor
from phalanx.launch.transport import (
    MPICH_TRANSPORT,
    choose_transport,
    skip_device_search,
    variables_for_ranks,
)


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
    skip_device_search(environ, tmp_path)
    assert environ == rank | ({} if device else {"OMPI_MCA_btl": "^ofi"})
    chosen = rank | {"OMPI_MCA_btl": "self,tcp"}
    for environ in (dict(chosen), {"PMI_RANK": "1", "PMI_SIZE": "2"}, {}):
        before = dict(environ)
        skip_device_search(environ, tmp_path)
        assert environ == before
