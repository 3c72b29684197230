"""What is said about the answers of ranks, and one real start."""

import json
import os
from pathlib import Path

import pytest

from phalanx.doctor.mpi import check_mpi, judge_ranks, parse_answers, reason, run_probe
from phalanx.jobs.installation import MpiInstallation, find_mpi

MPICH = MpiInstallation(vendor="mpich", version="5.0.2", mpiexec=Path("mpiexec"), source="path")
WELL = {
    "world_size": 2,
    "library": "MPICH Version: 5.0.2",
    "abi": [-1, -1],
    "thread_level": "multiple",
    "gpu_aware": False,
    "kernels": True,
    "all_reduce": ["from 4 bytes: shared (the ranks share memory)"],
}


def judge(answer, code=0):
    return judge_ranks(MPICH, 2, code, json.dumps(WELL | answer))


def test_all_well():
    found = judge({})
    assert [finding.status for finding in found] == ["ok"] * 6
    assert [finding.name for finding in found] == [
        "ranks",
        "MPI ABI",
        "MPI threads",
        "GPU-aware MPI",
        "kernels",
        "all-reduce",
    ]
    assert found[-1].detail == "from 4 bytes: shared (the ranks share memory)"


def test_zero_of_one():
    alone = json.dumps(WELL | {"world_size": 1, "library": "Open MPI v5.0.11"})
    (found,) = judge_ranks(MPICH, 2, 0, alone + alone + "\n\n")
    assert found.status == "problem"
    assert found.detail == (
        "each of 2 ranks started separately (as rank 0 of 1): mpiexec is of MPICH 5.0.2, mpi4py "
        "loads Open MPI v5.0.11"
    )
    assert found.mend


@pytest.mark.parametrize(
    ("answer", "name", "status"),
    [
        ({"thread_level": "funneled"}, "MPI threads", "warning"),
        ({"kernels": False}, "kernels", "warning"),
        ({"gpu_aware": True}, "GPU-aware MPI", "ok"),
        ({"gpu_aware": None}, "GPU-aware MPI", "ok"),
    ],
)
def test_single_faults(answer, name, status):
    (found,) = [finding for finding in judge(answer) if finding.name == name]
    assert found.status == status


@pytest.mark.parametrize(
    ("code", "output", "detail"),
    [
        (None, "", "2 ranks did not connect within 40 s: no output"),
        (16, "Runtime error: no PMIx\n----\n", "cannot start: Runtime error: no PMIx"),
        (1, json.dumps(WELL), "failed with exit code 1"),
    ],
)
def test_ranks_that_do_not_come_back(code, output, detail):
    (found,) = judge_ranks(MPICH, 2, code, output)
    assert found.status == "problem"
    assert found.detail.startswith(detail)


def test_answers_are_found_among_what_launchers_say():
    answer = json.dumps(WELL)
    assert parse_answers(f"warning!\n{answer}{answer}\nbye {{}}") == [WELL, WELL]
    assert parse_answers('{"world_size": tr') == []


def test_the_reason_is_the_first_error():
    assert reason("hello\nFatal error: x\n----\nExit code: 16\n-----") == "Fatal error: x"
    assert reason("hello\n----\nbye\n----\n") == "bye"


@pytest.mark.mpi
def test_a_real_start():
    code, output = run_probe(find_mpi(os.environ), 2)
    assert code == 0, output
    assert [finding.status for finding in check_mpi(2)] == ["ok"] * 7
