"""`phalanx doctor` as a user runs it."""

import json
import subprocess
import sys

import pytest


def doctor(*words):
    return subprocess.run(
        [sys.executable, "-m", "phalanx", "doctor", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.mpi
def test_json_and_exit_code_agree():
    ran = doctor("--json")
    findings = json.loads(ran.stdout)
    names = [finding["name"] for finding in findings]
    assert names[:5] == ["Python", "PyTorch", "GPU", "MPI", "ranks"]
    assert {"cores", "shared memory", "open files", "leftovers", "data", "report", "disk"} <= set(
        names
    )
    has_problem = any(finding["status"] == "problem" for finding in findings)
    assert ran.returncode == (1 if has_problem else 0)
    assert ran.stderr == ""


@pytest.mark.mpi
def test_a_problem_has_exit_code_1(tmp_path):
    ran = doctor("--data-root", str(tmp_path / "none"))
    assert ran.returncode == 1
    assert f"data: --data-root {tmp_path / 'none'} is not a folder" in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr


def test_bad_input():
    ran = doctor("--ranks", "0")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "phalanx: --ranks must be at least 1, not 0\n"
