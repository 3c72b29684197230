"""End the processes of a job on the nodes that its launcher may have lost."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from phalanx.launch import leftovers
from phalanx.launch.allocation import Allocation, granted, is_this_machine

CONNECT_S = 5
ANSWER_S = 9.0
"""For a node to be reached and to have ended what runs there."""
_MAX_NODES_AT_ONCE = 64


def end_elsewhere(
    nodes: Allocation, token: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """End the processes of a job on all its nodes but this one, at once.

    token: of the job, in the environment of its processes.
    Returns: the nodes that did not answer, or could not end them, each with the reason.
    """
    names = [node.name for node in nodes.nodes if not is_this_machine(node.name)]
    if not names:
        return {}
    with ThreadPoolExecutor(min(len(names), _MAX_NODES_AT_ONCE)) as threads:
        reasons = threads.map(lambda name: _end_on(name, token, environ), names)
        return {
            name: reason for name, reason in zip(names, reasons, strict=True) if reason is not None
        }


def reach(name: str, words: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command line that runs `words` on a node, as the launcher reaches it."""
    if "SLURM_JOB_ID" in environ and name in {node.name for node in granted(environ).nodes}:
        alone = ("--overlap", "--mpi=none", "--nodes=1", "--ntasks=1", "--input=all")
        return ["srun", *alone, f"--nodelist={name}", *words]
    agent = environ.get("PRTE_MCA_plm_ssh_agent") or environ.get("OMPI_MCA_plm_rsh_agent")
    if agent is None:
        agent = f"ssh -T -o BatchMode=yes -o ConnectTimeout={CONNECT_S}"
    return [*shlex.split(agent), name.strip("[]"), shlex.join(words)]


def _end_on(name: str, token: str, environ: Mapping[str, str]) -> str | None:
    """Return why a node may still run processes of the job; None if it does not."""
    command = reach(name, [sys.executable, "-I", "-S", "-", token], environ)
    source = Path(leftovers.__file__).read_text()
    try:
        done = subprocess.run(
            command,
            input=source,
            text=True,
            capture_output=True,
            timeout=ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {ANSWER_S:g} s"
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return said[-1] if said else f"{command[0]} ended with exit code {done.returncode}"
    left = done.stdout.split()
    return f"process {', '.join(left)} cannot be killed" if left else None
