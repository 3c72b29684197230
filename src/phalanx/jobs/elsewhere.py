"""End processes of a job on the other nodes: those that its launcher may have lost, or one."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import TypeVar

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

T = TypeVar("T")


def patience(limit_s: float, num_nodes: int) -> float:
    """Return the seconds to wait for the answer of each of so many nodes that are asked at once.

    limit_s: for one that is asked alone.
    """
    return limit_s + min(num_nodes, MAX_NODES_AT_ONCE) // _STARTS_PER_S


def num_waves(num_nodes: int) -> int:
    """Return in how many waves so many nodes are asked."""
    return math.ceil(num_nodes / MAX_NODES_AT_ONCE)


def end_elsewhere(
    nodes: Allocation, token: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """End the processes of a job on all its nodes but this one, at once.

    token: of the job, in the environment of its processes.
    Returns: the nodes that did not answer, or could not end them, each with the reason.
    """
    reasons = _on_each(nodes, lambda name, at_once: _end_on(name, token, environ, at_once))
    return {name: reason for name, reason in reasons.items() if reason is not None}


def kill_elsewhere(
    nodes: Allocation,
    token: str,
    *,
    hostname: str,
    pid: int,
    environ: Mapping[str, str] = os.environ,
) -> bool:
    """Kill one process of a job on another node than this one; return whether it was found.

    token: as of `end_elsewhere`. hostname: as the node has it, whatever name it is reached by.
    """

    def kill_on(name: str, at_once: int) -> bool:
        done = _run_on(name, [token, hostname, str(pid)], environ, at_once)
        return not isinstance(done, str) and "killed" in done.stdout

    return any(_on_each(nodes, kill_on).values())


def _on_each(nodes: Allocation, act: Callable[[str, int], T]) -> dict[str, T]:
    """Return what `act` makes of the name of each node but this one, and of how many these are,
    wave by wave."""
    names = [node.name for node in nodes.nodes if not is_this_machine(node.name)]
    if not names:
        return {}
    with ThreadPoolExecutor(min(len(names), MAX_NODES_AT_ONCE)) as threads:
        return dict(zip(names, threads.map(act, names, repeat(len(names))), strict=True))


def reach(name: str, words: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command line that runs `words` on a node, as the launcher reaches it."""
    if "SLURM_JOB_ID" in environ and name in {node.name for node in granted(environ).nodes}:
        alone = ("--overlap", "--mpi=none", "--nodes=1", "--ntasks=1", "--input=all")
        return ["srun", *alone, f"--nodelist={name}", *words]
    agent = environ.get("PRTE_MCA_plm_ssh_agent") or environ.get("OMPI_MCA_plm_rsh_agent")
    if agent is None:
        agent = f"ssh -T -o BatchMode=yes -o ConnectTimeout={CONNECT_S}"
    return [*shlex.split(agent), name.strip("[]"), shlex.join(words)]


def _end_on(name: str, token: str, environ: Mapping[str, str], at_once: int) -> str | None:
    """Return why a node may still run processes of the job; None if it does not."""
    done = _run_on(name, [token], environ, at_once)
    if isinstance(done, str):
        return done
    left = done.stdout.split()
    return f"process {', '.join(left)} cannot be killed" if left else None


def run_on_each(
    nodes: Allocation, program: str, words: Sequence[str], *, timeout_s: float | None = None
) -> dict[str, subprocess.CompletedProcess[str] | str]:
    """Run a file of Python on each node but this one, at once.

    program: which needs the standard library alone.
    Returns: by node how it ended, or why it could not be run.
    """

    def run_on(name: str, at_once: int) -> subprocess.CompletedProcess[str] | str:
        return _run_on(name, words, os.environ, at_once, program, timeout_s)

    return _on_each(nodes, run_on)


def _run_on(
    name: str,
    words: Sequence[str],
    environ: Mapping[str, str],
    at_once: int,
    program: str = leftovers.__file__,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str] | str:
    """Run a file of Python on one of the nodes that are asked at once; return why it could not be,
    if so."""
    command = reach(name, [sys.executable, "-I", "-S", "-", *words], environ)
    source = Path(program).read_text()
    timeout_s = timeout_s or (ANSWER_S if command[0] == "srun" else LOGIN_S)
    timeout_s = patience(timeout_s, at_once)
    try:
        done = subprocess.run(
            command,
            input=source,
            text=True,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return said[-1] if said else f"{command[0]} ended with exit code {done.returncode}"
    return done
