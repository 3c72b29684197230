"""End processes of a job on the other nodes: those that its launcher may have lost, or one."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from phalanx.jobs import leftovers
from phalanx.jobs.allocation import Allocation, granted, is_this_machine

CONNECT_S = 5
ANSWER_S = 9.0
"""Seconds for a node to be reached and to have ended what runs there."""
LOGIN_S = 60.0
"""The same by ssh, which gives up a node that cannot be reached after `CONNECT_S` by itself: what
takes longer is a login."""
MAX_NODES_AT_ONCE = 64
"""Nodes of a wave: one that has answered makes room for the next."""
_STARTS_PER_S = 4
"""Logins or steps that this machine, or the batch system's controller, begins in a second however
busy it is: others of the wave wait for them."""


class NoAnswerError(Exception):
    """A node that has not run what it was to run."""


def patience(limit_s: float, num_nodes: int) -> float:
    """Return the seconds to wait for the answer of each of so many nodes that are asked at once.

    limit_s: for one that is asked alone.
    """
    return limit_s + min(num_nodes, MAX_NODES_AT_ONCE) // _STARTS_PER_S


def num_waves(num_nodes: int) -> int:
    """Return in how many waves so many nodes are asked."""
    return math.ceil(num_nodes / MAX_NODES_AT_ONCE)


def run_on_each(
    nodes: Allocation,
    program: str,
    words: Sequence[str],
    *,
    timeout_s: float | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[dict[str, str], dict[str, str]]:
    """Run a file of Python on each node but this one, at once, wave by wave.

    program: which needs the standard library alone.
    Returns: what it has printed, by node, and why it could not be run on others.
    """
    names = [node.name for node in nodes.nodes if not is_this_machine(node.name)]
    printed, failed = dict[str, str](), dict[str, str]()
    source = Path(program).read_text()
    with ThreadPoolExecutor(MAX_NODES_AT_ONCE) as threads:
        answers = {
            name: threads.submit(_run_on, name, source, words, environ, len(names), timeout_s)
            for name in names
        }
        try:
            for name, answer in answers.items():
                try:
                    printed[name] = answer.result()
                except NoAnswerError as error:
                    failed[name] = str(error)
        except BaseException:  # such as Ctrl-C: later waves are not begun
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return printed, failed


def end_elsewhere(
    nodes: Allocation, token: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """End the processes of a job on all its nodes but this one.

    token: of the job, in the environment of its processes.
    Returns: the nodes that did not answer, or could not end them, each with the reason.
    """
    printed, reasons = run_on_each(nodes, leftovers.__file__, [token], environ=environ)
    for name, said in printed.items():
        if left := said.split():
            reasons[name] = f"process {', '.join(left)} cannot be killed"
    return reasons


def kill_elsewhere(nodes: Allocation, token: str, *, hostname: str, pid: int) -> bool:
    """Kill one process of a job on another node than this one; return whether it was found.

    token: as of `end_elsewhere`. hostname: as the node has it, whatever name it is reached by.
    """
    printed, _ = run_on_each(nodes, leftovers.__file__, [token, hostname, str(pid)])
    return any("killed" in said for said in printed.values())


def reach(name: str, words: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command line that runs `words` on a node, as the launcher reaches it."""
    if "SLURM_JOB_ID" in environ and name in {node.name for node in granted(environ).nodes}:
        alone = ("--overlap", "--mpi=none", "--nodes=1", "--ntasks=1", "--input=all")
        return ["srun", *alone, f"--nodelist={name}", *words]
    agent = environ.get("PRTE_MCA_plm_ssh_agent") or environ.get("OMPI_MCA_plm_rsh_agent")
    if agent is None:
        agent = f"ssh -T -o BatchMode=yes -o ConnectTimeout={CONNECT_S}"
    return [*shlex.split(agent), name.strip("[]"), shlex.join(words)]


def _run_on(
    name: str,
    source: str,
    words: Sequence[str],
    environ: Mapping[str, str],
    at_once: int,
    timeout_s: float | None,
) -> str:
    """Return what a program of Python prints on one of the nodes that are asked at once.

    Raises: NoAnswerError.
    """
    command = reach(name, [sys.executable, "-I", "-S", "-", *words], environ)
    timeout_s = timeout_s or (ANSWER_S if command[0] == "srun" else LOGIN_S)
    timeout_s = patience(timeout_s, at_once)
    try:
        done = subprocess.run(
            command, input=source, text=True, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise NoAnswerError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        why = f"{command[0]} ended with exit code {done.returncode}"
        raise NoAnswerError((done.stderr.strip().splitlines() or [why])[-1])
    return done.stdout
