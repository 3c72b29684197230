"""One rank on each node, which find each other by MPI and measure the links between the nodes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Self

import msgspec

from phalanx.doctor.examine import Finding, problem
from phalanx.doctor.mpi import parse_answers, reason
from phalanx.doctor.nodes.survey import FAILED, Survey
from phalanx.jobs.allocation import HOSTS
from phalanx.jobs.command import mpi_job
from phalanx.jobs.elsewhere import CONNECT_S, num_waves
from phalanx.jobs.installation import MpiInstallation
from phalanx.jobs.job import Job
from phalanx.jobs.launcher_log import LAUNCHER_LOG, has_not_started, read_log

SURVEY_S = 30.0
SURVEY_PROGRAM = (sys.executable, "-m", "phalanx.doctor.nodes.survey")
_POLL_EVERY_S = 0.02
_FIREWALL = (
    "allow the nodes to reach each other on all TCP ports; if a node has several networks, choose "
    "one: OMPI_MCA_btl_tcp_if_include, PRTE_MCA_prte_if_include, or -iface for Hydra"
)


class Meeting:
    """Ranks on all hosts, started; leaving the `with` block ends them."""

    def __init__(
        self,
        hosts: Sequence[str],
        mpi: MpiInstallation,
        question: Mapping[str, object] | None,
        *,
        patience_s: float = SURVEY_S,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """question: as `survey` takes it. patience_s: for a launcher to start a rank on each of one
        wave of nodes. variables: for the launcher and the ranks."""
        self._hosts, self._mpi = hosts, mpi
        self._patience_s = patience_s + CONNECT_S * (num_waves(len(hosts)) - 1)
        self._found: Survey | Finding | None = None
        environ = {**os.environ, HOSTS: ",".join(f"{host}:1" for host in hosts)}
        program = [*SURVEY_PROGRAM, json.dumps(question)]
        command = mpi_job(mpi, len(hosts), program, environ=environ)
        self._command = replace(command, environment={**command.environment, **variables})
        self._has_restarted = False
        with contextlib.ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="phalanx-doctor-")
            self._folder = Path(stack.enter_context(folder))
            self._job = self._start()
            stack.callback(lambda: self._job.end())
            self._stack = stack.pop_all()
        self._until_s = time.monotonic() + self._patience_s

    def _start(self) -> Job:
        return Job.start([self._command], self._folder / LAUNCHER_LOG)

    def poll(self) -> Survey | Finding | None:
        """Return what the ranks found, or why they did not; None while they are at it."""
        if self._found is None:
            code = self._job.poll()
            if not self._has_restarted and has_not_started(self._folder, code):
                self._job, self._has_restarted = self._start(), True
            elif code is not None or time.monotonic() > self._until_s:
                self._job.end()
                self._found = self._judge(code, read_log(self._folder))
        return self._found

    def wait(self) -> Survey | Finding:
        """Poll until the ranks have ended."""
        while (found := self.poll()) is None:
            time.sleep(_POLL_EVERY_S)
        return found

    def _judge(self, code: int | None, output: str) -> Survey | Finding:
        answers, said = parse_answers(output), describe_output(output)
        if code is None:
            hosts = ", ".join(self._hosts[:8])
            detail = f"ranks on {hosts} cannot reach each other within {self._patience_s:g} s"
            return problem("MPI", f"{detail}: {said}", _FIREWALL)
        if code or not answers:
            return problem("MPI", f"{self._mpi} does not connect the nodes: {said}", _FIREWALL)
        return msgspec.convert(answers[0], Survey)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def describe_output(output: str) -> str:
    """Return the launcher's first sentence, between lines of dashes, what a rank said, or the first
    line of an error."""
    parts = re.split(r"^-{20,}\n", output, flags=re.MULTILINE)
    if len(parts) > 2:
        return " ".join(parts[1].split()).partition(". ")[0]
    lines = [line for line in output.splitlines() if "setpgid(" not in line]  # harmless
    said = next((line for line in lines if line.startswith(FAILED)), None)
    return said.removeprefix(FAILED) if said else reason("\n".join(lines))
