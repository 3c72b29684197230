"""Job files of batch systems: nodes, ranks, time, and a stop with a checkpoint before it is over.

A job file starts one command, which finds the nodes that were granted (`allocation.py`). Before
the end it sends SIGUSR1: the ranks save a checkpoint and stop with exit code 75 (`EXIT_STOPPED`),
and the job file queues the job again, until the command has come to its end. It does so, too,
where ranks or a node were lost after a checkpoint (`EXIT_LOST`), a number of times.
"""

from __future__ import annotations

import math
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from textwrap import indent
from typing import Literal

import yaml

from phalanx.errors import EXIT_LOST, EXIT_STOPPED, UserError

System = Literal["slurm", "pbs", "k8s", "trainjob"]
"""Slurm, PBS (also OpenPBS), Kubernetes with the MPI Operator, and with Kubeflow's Trainer."""
CLOUD: tuple[System, ...] = ("k8s", "trainjob")
SUBMIT: dict[System, tuple[str, ...]] = {
    "slurm": ("sbatch",),
    "pbs": ("qsub",),
    "k8s": ("kubectl", "create", "-f"),
    "trainjob": ("kubectl", "create", "-f"),
}
SUFFIX: dict[System, str] = {
    "slurm": ".sbatch",
    "pbs": ".pbs",
    "k8s": ".mpijob.yaml",
    "trainjob": ".trainjob.yaml",
}
DEFAULT_NOTICE_S = 120
"""Seconds between SIGUSR1 and the end: a step, and a checkpoint."""
KILLED_BY_NOTICE = 128 + signal.SIGUSR1
"""Exit code of a command that the notice has ended, before it could listen for it."""
MAX_LOSSES = 10
"""Times that a job which has lost ranks is queued again."""


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """Request of a job file, and the command that it runs on the first node."""

    name: str
    command: Sequence[str]
    """Starts the ranks on the nodes that were granted."""
    ranks: int
    nodes: int = 1
    threads: int = 1
    """Cores of each rank."""
    time_s: int = 3600
    notice_s: int = DEFAULT_NOTICE_S
    """Seconds before the end of that time at which SIGUSR1 is sent."""
    folder: Path | None = None
    """Folder in which the command runs, on every node; None: where the system starts it."""
    file: Path
    """The job file itself."""
    directives: Sequence[str] = ()
    """More lines for the batch system, without its prefix: `--partition=long`, `-q long`."""
    image: str | None = None
    """Image of the containers in Kubernetes."""
    runtime: str = "deepspeed-distributed"
    """ClusterTrainingRuntime of a TrainJob: one with an `mpi` policy, as this one of Trainer."""

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UserError(f"--nodes {self.nodes} must be at least 1")
        if self.ranks % self.nodes:
            raise UserError(
                f"--ranks {self.ranks} on --nodes {self.nodes}: batch systems grant each node the "
                f"same number of ranks; use a multiple of {self.nodes}"
            )
        if not 0 <= self.notice_s < self.time_s:
            raise UserError(
                f"--notice {self.notice_s}: between 0 and the job's {self.time_s} seconds (--time)"
            )
        for directive in self.directives:
            if not directive.isprintable():
                raise UserError(
                    f"--directive {directive!r} is not one line: give the option once per line"
                )

    @property
    def ranks_per_node(self) -> int:
        return self.ranks // self.nodes


def parse_time(text: str) -> int:
    """Parse `90` (minutes), `1:30:00` or `2-12:00:00` into seconds, as Slurm does.

    Raises: UserError for anything else.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if found is None:
        raise UserError(f"--time {text}: write minutes (90), H:MM:SS, or D-HH:MM:SS")
    days, first, second, third = (int(group or 0) for group in found.groups())
    parts = sum(group is not None for group in found.groups()[1:])
    if parts == 1 and found[1] is None:
        seconds = 60 * first
    elif parts == 2 and found[1] is None:
        seconds = 60 * first + second
    else:
        seconds = 86_400 * days + 3600 * first + 60 * second + third
    if seconds == 0:
        raise UserError(f"--time {text} leaves no time for the job")
    return seconds


def job_file(system: System, job: BatchJob) -> str:
    """Return the text of the job file, from the template of the system.

    Raises: UserError for a job in Kubernetes without an image.
    """
    words = {
        **vars(job),
        "ranks_per_node": job.ranks_per_node,
        "cores": job.ranks_per_node * job.threads,
        "clock": _clock(job.time_s),
        "name": _word(job.name),
        "short_name": _word(job.name)[:15],
        "change_folder": ""
        if job.folder is None
        else f"cd {shlex.quote(str(job.folder))} || exit\n",
    }
    words |= _in_pod(system, job, words) if system in CLOUD else _script(system, job, words)
    return _filled(f"{system}{SUFFIX[system]}", words) + "\n"


def _script(system: System, job: BatchJob, words: dict[str, object]) -> dict[str, object]:
    """Return what fills the template of a shell script."""
    more, timer, stop_timer = list(job.directives), "", ""
    if system == "slurm":
        prefix, again = "#SBATCH", 'scontrol requeue "$SLURM_JOB_ID"'
        file = f"{words['name']}-$SLURM_JOB_ID.losses"
        count = f"date >> {file}; lost=$(wc -l < {file})"
        more = [*([f"--signal=B:USR1@{job.notice_s}"] if job.notice_s else []), *more]
    else:
        prefix, again = "#PBS", f"qsub -v LOST=$lost {shlex.quote(str(job.file.absolute()))}"
        count = "((lost += 1))"
        if job.notice_s:  # PBS gives no notice of the end by itself
            timer = f"(sleep {job.time_s - job.notice_s}; kill -USR1 $$) &\ntimer=$!\n"
            stop_timer = "kill $timer 2>/dev/null\n"
    codes = {
        "lost_code": EXIT_LOST,
        "max_losses": MAX_LOSSES,
        "stopped_code": EXIT_STOPPED,
        "killed_code": KILLED_BY_NOTICE,
    }
    return {
        "directives": "".join(f"{prefix} {directive}\n" for directive in more),
        "run": _run(job, on_term="ended=1; kill -TERM $command 2>/dev/null"),
        "again": _filled("again.sh", {**codes, "again": again, "count": count}),
        "timer": timer,
        "stop_timer": stop_timer,
    }


def _in_pod(system: System, job: BatchJob, words: dict[str, object]) -> dict[str, object]:
    """Return what fills the template of a job in Kubernetes. A pod that is to end gets SIGTERM, and
    is asked to stop with a checkpoint; its exit code 75 has it started again."""
    run = _run(job, on_term="kill -USR1 $command 2>/dev/null")
    text = f"{words['change_folder']}{run}\nexit $code"
    is_plain = all(w.isascii() and w.isprintable() for w in (*job.command, str(job.folder or "")))
    margin = " " * (14 if system == "k8s" else 6)
    return {
        "label": _label(job.name),
        "grace_s": max(30, job.notice_s),
        "image": _quoted(_image(job)),
        "runtime": _quoted(job.runtime),
        "script": f"|\n{indent(text, margin)}" if is_plain else _quoted(text + "\n"),
    }


def _run(job: BatchJob, *, on_term: str) -> str:
    """Return shell commands that run the job's command, pass signals on, and set `code`."""
    return _filled("run.sh", {"command": shlex.join(job.command), "on_term": on_term})


class _Template(Template):
    """Text with places such as @name: shells have a use for the dollar."""

    delimiter = "@"


def _filled(name: str, words: Mapping[str, object]) -> str:
    """Return the text of a template, without the end of its last line."""
    text = Path(__file__).with_name("templates").joinpath(name).read_text()
    return _Template(text.removesuffix("\n")).substitute(words)


def _word(name: str) -> str:
    """Return a name as one word: a directive would end at a blank."""
    return re.sub(r"[^\w.-]+", "-", name)


def _clock(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"


def _image(job: BatchJob) -> str:
    if not job.image:
        raise UserError(
            "--submit for Kubernetes needs --image: an image with this program, Phalanx, Open MPI, "
            "ssh and sshd"
        )
    return job.image


def _label(name: str) -> str:
    """Return a name as Kubernetes allows it: lower-case letters, digits and hyphens."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    return label if label[:1].isalpha() else f"job-{label}".strip("-")


def _quoted(text: str) -> str:
    """Return `text` as a string of YAML in one line.

    Raises: UserError for bytes that are no text.
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{text[-200:]!r} has bytes that are not UTF-8, which YAML cannot hold")
    quoted: str = yaml.safe_dump(text, default_style='"', width=math.inf)
    return quoted.removesuffix("\n")
