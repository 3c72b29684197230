"""Whether an MPI library takes GPU memory, for each vendor as it announces it; without MPI."""

import pytest

from phalanx.comm.gpu import is_gpu_aware

OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution"
MPICH = "MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)"
INTEL = "Intel(R) MPI Library 2021.18.0 for Linux* OS"


@pytest.mark.parametrize(
    ("environ", "library", "told", "aware"),
    [
        ({}, OPEN_MPI, True, True),
        ({}, OPEN_MPI, False, False),
        ({}, OPEN_MPI, None, None),
        ({}, MPICH, True, True),
        ({}, MPICH, False, False),
        ({}, CRAY, True, False),
        ({"MPICH_GPU_SUPPORT_ENABLED": "0"}, CRAY, True, False),
        ({"MPICH_GPU_SUPPORT_ENABLED": "1"}, CRAY, None, True),
        ({"MPICH_GPU_SUPPORT_ENABLED": "1"}, OPEN_MPI, False, False),
        ({}, INTEL, True, False),
        ({"I_MPI_OFFLOAD": "0"}, INTEL, True, False),
        ({"I_MPI_OFFLOAD": "1"}, INTEL, False, True),
        ({"I_MPI_OFFLOAD": "2"}, INTEL, None, True),
    ],
)
def test_what_each_library_says(
    environ: dict[str, str], library: str, told: bool | None, aware: bool | None
) -> None:
    assert is_gpu_aware(environ, library, told) is aware


@pytest.mark.parametrize("library", [OPEN_MPI, MPICH, CRAY, INTEL])
def test_the_user_knows_better(library: str) -> None:
    environ = {"MPICH_GPU_SUPPORT_ENABLED": "1", "I_MPI_OFFLOAD": "1"}
    assert is_gpu_aware({**environ, "PHALANX_GPU_AWARE": "0"}, library, True) is False
    assert is_gpu_aware({"PHALANX_GPU_AWARE": "1"}, library, None) is True
    assert is_gpu_aware({"PHALANX_GPU_AWARE": ""}, library, None) in (None, False)


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="PHALANX_GPU_AWARE is 'yes'; it must be 0 or 1"):
        is_gpu_aware({"PHALANX_GPU_AWARE": "yes"}, OPEN_MPI, None)
