"""What is said about numbers that a machine reports."""

from pathlib import Path

import pytest

from phalanx.doctor.machine import (
    MIB,
    check_disk,
    judge_cores,
    judge_disk,
    judge_files,
    judge_leftovers,
    judge_reads,
    judge_shared_memory,
)


@pytest.mark.parametrize(
    ("numbers", "status", "detail"),
    [
        ((2, 4, 4, 4), "ok", "4 usable for 2 ranks, 2 threads each"),
        ((1, 1, 1, 1), "ok", "1 usable for 1 rank, 1 thread each"),
        ((3, 2, 2, 2), "warning", "2 usable for 3 ranks"),
        (
            (2, 2, 4, 64),
            "ok",
            "2 usable for 2 ranks (affinity leaves 4 of 64, the container's quota leaves 2 of 4), "
            "1 thread each",
        ),
    ],
)
def test_cores(numbers, status, detail):
    found = judge_cores(*numbers)
    assert (found.status, found.detail) == (status, detail)
    assert (found.mend is None) == (status == "ok")


@pytest.mark.parametrize(
    ("ranks", "total_mib", "free_mib", "status", "mend"),
    [
        (2, 24_000, 24_000, "ok", None),
        (2, 64, 64, "warning", "docker run --shm-size=1g"),  # what docker grants
        (8, 64, 64, "problem", "docker run --shm-size=1g"),
        (2, 24_000, 10, "problem", "remove files that fill it"),
    ],
)
def test_shared_memory(ranks, total_mib, free_mib, status, mend):
    found = judge_shared_memory(ranks, total_mib * MIB, free_mib * MIB)
    assert found.status == status
    assert (mend is None and found.mend is None) or mend in found.mend


def test_leftovers_are_named_with_the_command_that_removes_them():
    assert judge_leftovers([]).status == "ok"
    found = judge_leftovers([(Path("/dev/shm/mpich_shm_1_0"), 2 * MIB)])
    assert (found.status, found.detail) == ("warning", "1 file of killed jobs, 2 MiB")
    assert found.mend == "rm /dev/shm/mpich_shm_1_0"


@pytest.mark.parametrize(("free_mib", "status"), [(2_000, "ok"), (500, "warning"), (50, "problem")])
def test_disk(free_mib, status):
    assert judge_disk(Path("runs"), free_mib * MIB).status == status


def test_the_folder_of_runs_need_not_exist(tmp_path):
    (found,) = check_disk(tmp_path / "new" / "runs")
    assert "free for" in found.detail


def test_reads_of_peers() -> None:
    assert judge_reads(0).status == "ok"
    forbidden = judge_reads(1)
    assert forbidden.status == "warning"
    assert "ptrace_scope is 1" in forbidden.detail
    assert forbidden.mend is not None and forbidden.mend.startswith("sysctl")


def test_open_files_are_compared_with_the_ranks():
    assert judge_files(2, 1024, 1024).status == "ok"
    assert judge_files(2, 1024, 65_536).detail.startswith("65536 may be open (1024 until")
    many = judge_files(1024, 1024, 1024)
    assert many.status == "warning"
    assert many.mend is not None and many.mend.startswith("ulimit -n 1152")
    assert judge_files(16_384, 128, 128).status == "problem"
