"""Which library may take the place of which, and by which launcher."""

import pytest

from phalanx.doctor.abi import judge_abi


@pytest.mark.parametrize(
    ("library", "version", "says"),
    [
        ("MPICH Version: 5.0.2", (1, 0), "the standard 1.0; any libmpi_abi.so may stand in"),
        ("MPICH Version: 5.0.2", (-1, -1), "of MPICH; Cray MPICH, Intel MPI or MVAPICH"),
        ("MPI VERSION : CRAY MPICH version 8.1.29", (-1, -1), "of MPICH; Cray MPICH"),
        ("Intel(R) MPI Library 2021.18 for Linux* OS", (-1, -1), "of MPICH; Cray MPICH"),
        ("Open MPI v5.0.11", (-1, -1), "of Open MPI; another Open MPI of this series"),
        ("HPE MPT 2.30", (-1, -1), "only that of the library"),
    ],
)
def test_an_abi_has_libraries_and_a_launcher(
    library: str, version: tuple[int, int], says: str
) -> None:
    found = judge_abi(library, version, "MPICH 5.0.2")
    assert found.status == "ok"
    assert found.detail.startswith(says)
    assert "mpiexec of MPICH 5.0.2" in found.detail
