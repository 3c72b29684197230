"""Job files of batch systems: nodes, ranks, time, and a stop with a checkpoint before it is over.

A job file starts one command, which finds the nodes that were granted (`allocation.py`). Before
the end it sends SIGUSR1: the ranks save a checkpoint and stop with exit code 75 (`EXIT_STOPPED`),
and the job file queues the job again, until the command has come to its end. It does so, too,
where ranks or a node were lost after a checkpoint (`EXIT_LOST`), a number of times.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Literal, get_args

from phalanx.errors import EXIT_LOST, EXIT_STOPPED, UserError

System = Literal["slurm", "pbs", "k8s", "trainjob"]
"""Slurm, PBS (also OpenPBS), Kubernetes with the MPI Operator, and with Kubeflow's Trainer."""
SYSTEMS: tuple[System, ...] = get_args(System)
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
"""Between SIGUSR1 and the end: a step, and a checkpoint."""
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
    """Before the end of that time, SIGUSR1 is sent."""
    folder: Path | None = None
    """Where the command runs, on every node; None: where the system starts it."""
    file: Path
    """The job file itself."""
    directives: Sequence[str] = ()
    """More lines for the batch system, without its prefix: `--partition=long`, `-q long`."""
    image: str | None = None
    """Of the containers in Kubernetes."""
    runtime: str = "deepspeed-distributed"
    """ClusterTrainingRuntime of a TrainJob: one with an `mpi` policy, as this one of Trainer."""

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UserError(f"--nodes {self.nodes} must be at least 1")
        if self.ranks % self.nodes:
            raise UserError(
                f"--ranks {self.ranks} on --nodes {self.nodes}: batch systems grant each node the "
                "same number of ranks; take a multiple"
            )
        if not 0 <= self.notice_s < self.time_s:
            raise UserError(
                f"--notice {self.notice_s}: between 0 and the job's {self.time_s} seconds (--time)"
            )
        for directive in self.directives:
            if not directive.isprintable():
                raise UserError(
                    f"--directive {directive!r} is one line: give the option once per line"
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
        raise UserError(f"--time {text} leaves the job no time")
    return seconds


def job_file(system: System, job: BatchJob) -> str:
    """Return the text of the job file.

    Raises: UserError for a job in Kubernetes without an image.
    """
    writers: dict[System, Callable[[BatchJob], str]] = {
        "slurm": _slurm,
        "pbs": _pbs,
        "k8s": _mpi_job,
        "trainjob": _train_job,
    }
    return writers[system](job)


def _slurm(job: BatchJob) -> str:
    directives = [
        f"--job-name={_word(job.name)}",
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={job.ranks_per_node}",
        f"--cpus-per-task={job.threads}",
        f"--time={_clock(job.time_s)}",
        "--output=%x-%j.log",
        "--open-mode=append",
        "--requeue",
        *([f"--signal=B:USR1@{job.notice_s}"] if job.notice_s else []),
        *job.directives,
    ]
    again = 'scontrol requeue "$SLURM_JOB_ID"'
    file = f"{_word(job.name)}-$SLURM_JOB_ID.losses"
    count = f"date >> {file}; lost=$(wc -l < {file})"
    return _script("#SBATCH", directives, job, again, count)


def _pbs(job: BatchJob) -> str:
    cores = job.ranks_per_node * job.threads
    directives = [
        f"-N {_word(job.name)[:15]}",
        f"-l select={job.nodes}:ncpus={cores}:mpiprocs={job.ranks_per_node}",
        f"-l walltime={_clock(job.time_s)}",
        "-j oe",
        "-r y",
        *job.directives,
    ]
    # PBS gives no notice of the end by itself.
    timer = f"(sleep {job.time_s - job.notice_s}; kill -USR1 $$) &\ntimer=$!\n"
    again = f"qsub -v LOST=$lost {shlex.quote(str(job.file.absolute()))}"
    before = f"lost=${{LOST:-0}}\n{timer if job.notice_s else ''}"
    stop_timer = "kill $timer 2>/dev/null\n" if job.notice_s else ""
    return _script("#PBS", directives, job, again, "((lost += 1))", before, stop_timer)


def _script(
    prefix: str,
    directives: Sequence[str],
    job: BatchJob,
    again: str,
    count: str,
    before: str = "",
    after: str = "",
) -> str:
    """Return a shell script. again: queues the job anew. count: sets `lost` to the losses of its
    lives, this one included. before, after: lines around the command."""
    lines = "\n".join(f"{prefix} {directive}" for directive in directives)
    return (
        f"#!/bin/bash\n{lines}\n\n"
        f"{_change_folder(job)}{before}{_run_and_wait(job)}{after}"
        f"# {EXIT_LOST}: ranks or a node were lost after a checkpoint\n"
        f"if [ $code -eq {EXIT_LOST} ]; then\n"
        f"  {count}\n"
        f"  [ $lost -le {MAX_LOSSES} ] && code={EXIT_STOPPED}\n"
        "fi\n"
        f"# {EXIT_STOPPED}: stopped with a checkpoint; {KILLED_BY_NOTICE}: before it had begun\n"
        f"if [ $code -eq {EXIT_STOPPED} ] || [ $code -eq {KILLED_BY_NOTICE} ]; then\n"
        '  [ -n "$ended" ] && exit $code  # SIGTERM: whoever ended the job decides\n'
        f"  {again} && exit 0\n"
        "fi\n"
        "exit $code\n"
    )


def _run_and_wait(job: BatchJob) -> str:
    """Return shell commands that run the job's command, pass signals on, and set `code`."""
    return (
        "trap 'kill -USR1 $command 2>/dev/null' USR1\n"
        "trap 'ended=1; kill -TERM $command 2>/dev/null' TERM\n"
        f"{shlex.join(job.command)} &\n"
        "command=$!\n"
        "wait $command; code=$?  # a signal ends the wait\n"
        "while kill -0 $command 2>/dev/null; do wait $command; code=$?; done\n"
    )


def _word(name: str) -> str:
    """Return a name as one word: a directive would end at a blank."""
    return re.sub(r"[^\w.-]+", "-", name)


def _clock(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"


def _mpi_job(job: BatchJob) -> str:
    return f"""\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  generateName: {_label(job.name)}-
spec:
  slotsPerWorker: {job.ranks_per_node}
  mpiImplementation: OpenMPI
  launcherCreationPolicy: WaitForWorkersReady
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 100
    activeDeadlineSeconds: {job.time_s}
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          terminationGracePeriodSeconds: {max(30, job.notice_s)}
          containers:
          - name: launcher
            image: {_quoted(_image(job))}
            command: [bash, -c]
            args:
            - {_script_in_yaml(job, " " * 14)}
    Worker:
      replicas: {job.nodes}
      template:
        spec:
          containers:
          - name: worker
            image: {_quoted(_image(job))}
            command: [/usr/sbin/sshd]
            args: [-De]
            resources:
              limits:
                cpu: {job.ranks_per_node * job.threads}
"""


def _train_job(job: BatchJob) -> str:
    return f"""\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  generateName: {_label(job.name)}-
spec:
  runtimeRef:
    name: {_quoted(job.runtime)}  # of Open MPI: the operator refuses MPICH and Intel MPI
  activeDeadlineSeconds: {job.time_s}
  trainer:
    image: {_quoted(_image(job))}
    numNodes: {job.nodes}
    numProcPerNode: {job.ranks_per_node}
    resourcesPerNode:
      limits:
        cpu: {job.ranks_per_node * job.threads}
    command: [bash, -c]
    args:
    - {_script_in_yaml(job, " " * 6)}
"""


def _script_in_yaml(job: BatchJob, margin: str) -> str:
    """Return what the pod runs as a string of YAML: a block to read, if all of it is plain text."""
    if all(w.isascii() and w.isprintable() for w in (*job.command, str(job.folder or ""))):
        return f"|\n{indent(_in_pod(job), margin)}"
    return _quoted(_in_pod(job) + "\n")


def _in_pod(job: BatchJob) -> str:
    """Return what the launching pod runs: a pod that is to end gets SIGTERM, and is asked to
    stop with a checkpoint; its exit code 75 has it started again."""
    text = _run_and_wait(job).replace(
        "'ended=1; kill -TERM $command 2>/dev/null' TERM",
        "'kill -USR1 $command 2>/dev/null' TERM",
    )
    return f"{_change_folder(job)}{text}exit $code"


def _change_folder(job: BatchJob) -> str:
    return "" if job.folder is None else f"cd {shlex.quote(str(job.folder))} || exit\n"


def _image(job: BatchJob) -> str:
    if not job.image:
        raise UserError(
            "--submit for Kubernetes needs --image: one with this program, Phalanx, Open MPI, "
            "ssh and sshd"
        )
    return job.image


def _label(name: str) -> str:
    """Return a name as Kubernetes allows it: lower-case letters, digits and hyphens."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    return label if label[:1].isalpha() else f"job-{label}".strip("-")


def _quoted(text: str) -> str:
    """Return `text` as a string of YAML, of which control characters, too, are a part.

    Raises: UserError for bytes that are no text.
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{text[-200:]!r} has bytes that are not UTF-8, which YAML cannot hold")
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character == "\n":
        return "\\n"
    is_plain = " " <= character <= "~" and character not in '"\\'
    return character if is_plain else f"\\U{ord(character):08x}"
