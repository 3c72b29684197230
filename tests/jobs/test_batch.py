"""Job files: what they ask for, and that they queue a stopped job again."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import EXIT_LOST, EXIT_STOPPED, UserError
from phalanx.jobs.batch import MAX_LOSSES, BatchJob, System, job_file, parse_time

# Ends as the argument says, or when asked to stop.
PROGRAM = f"""
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit({EXIT_STOPPED}))
print("running", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


DEAF = "import time; print('running', flush=True); time.sleep(60)"
"""A program that the notice ends, as it does not listen for it yet."""


def job(folder: Path, *words: str, **options: object) -> BatchJob:
    wanted: dict = {"name": "Net 1", "ranks": 4, "nodes": 2, "threads": 3, "image": "a/b:1"}
    program = DEAF if words == ("deaf",) else PROGRAM
    command = [sys.executable, "-c", program, *words] if words else ["phalanx", "launch", "a.py"]
    return BatchJob(command=command, folder=folder, file=folder / "job", **wanted | options)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("1:30:00", 5400),
        ("2-12", 216_000),
        ("2-12:30", 217_800),
        ("1-0:0:5", 86_405),
    ],
)
def test_times_as_slurm_reads_them(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "1h", "0", "1:2:3:4", "-5"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="--time"):
        parse_time(text)


def test_what_is_asked_of_slurm_and_pbs(tmp_path: Path) -> None:
    slurm = job_file("slurm", job(tmp_path, time_s=5400, directives=["--partition=long"]))
    for line in (
        *("--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=3", "--time=01:30:00"),
        *("--requeue", "--signal=B:USR1@120", "--partition=long", "--job-name=Net-1"),
    ):
        assert f"#SBATCH {line}\n" in slurm
    pbs = job_file("pbs", job(tmp_path, time_s=5400))
    for line in ("-l select=2:ncpus=6:mpiprocs=2", "-l walltime=01:30:00", "-r y"):
        assert f"#PBS {line}\n" in pbs
    assert "sleep 5280" in pbs
    assert "#PBS -N Net-1\n" in pbs, "a blank would end the directive"
    with pytest.raises(UserError, match="--nodes 0"):
        job(tmp_path, nodes=0)
    with pytest.raises(UserError, match="--ranks 3 on --nodes 2"):
        job(tmp_path, ranks=3)
    with pytest.raises(UserError, match="--notice 60"):
        job(tmp_path, time_s=60, notice_s=60)
    with pytest.raises(UserError, match=r"--directive '-q a\\nrm -r x' is not one line"):
        job(tmp_path, directives=["-q a\nrm -r x"])


def test_what_is_asked_of_kubernetes(tmp_path: Path) -> None:
    mpi = yaml.safe_load(job_file("k8s", job(tmp_path)))
    assert mpi["kind"] == "MPIJob" and mpi["metadata"]["generateName"] == "net-1-"
    replicas = mpi["spec"]["mpiReplicaSpecs"]
    assert replicas["Worker"]["replicas"] == mpi["spec"]["slotsPerWorker"] == 2
    launcher = replicas["Launcher"]["template"]["spec"]["containers"][0]
    assert "phalanx launch a.py" in launcher["args"][0] and launcher["image"] == "a/b:1"
    text = job_file("trainjob", job(tmp_path))
    train = yaml.safe_load(text)
    assert "the operator refuses MPICH and Intel MPI" in text  # kubeflow/trainer#4025
    assert train["spec"]["trainer"]["numNodes"] == 2
    assert train["spec"]["trainer"]["args"] == launcher["args"]
    with pytest.raises(UserError, match="needs --image"):
        job_file("k8s", job(tmp_path, image=None))


WORD = st.text(
    st.one_of(st.sampled_from("\x1b\x0c\x7f\r\x85\n\t '\"\\$`#:-\u2028\ufeff😀"), st.characters()),
    max_size=9,
).filter(lambda word: "\0" not in word and not any("\ud800" <= c <= "\udfff" for c in word))


@settings(max_examples=60, deadline=None)
@given(st.lists(WORD, max_size=4), WORD)
def test_arguments_arrive_as_they_were_given(words: list[str], runtime: str) -> None:
    """Escape and delete made the YAML invalid, a carriage return arrived as a newline, and a
    `--runtime` could add fields."""
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words]
    plain = BatchJob(
        name="a", command=command, ranks=1, file=Path("a"), image=runtime + "x", runtime=runtime
    )
    launcher = yaml.safe_load(job_file("k8s", plain))["spec"]["mpiReplicaSpecs"]["Launcher"]
    container = launcher["template"]["spec"]["containers"][0]
    train = yaml.safe_load(job_file("trainjob", plain))["spec"]
    assert (container["image"], train["runtimeRef"]["name"]) == (runtime + "x", runtime)
    assert train["trainer"]["args"] == container["args"]
    script = container["args"][0]
    pieces = shlex.split(script.split("TERM\n", 1)[1].split(" &\ncommand=$!", 1)[0])
    assert pieces == command


def test_every_character_reaches_the_program() -> None:
    words = ["".join(map(chr, range(1, 300))), "a\n   \nb", "\u2028\ufeff😀", "-x", ""]
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words]
    plain = BatchJob(
        name="a", command=command, ranks=1, file=Path("a"), image="i", time_s=9, notice_s=5
    )
    train = yaml.safe_load(job_file("trainjob", plain))["spec"]["trainer"]
    for shell in (train["args"][0], job_file("slurm", plain), job_file("pbs", plain)):
        done = subprocess.run(["bash", "-c", shell], capture_output=True, check=True)
        assert json.loads(done.stdout) == words
    with pytest.raises(UserError, match="not UTF-8"):
        job_file("k8s", replace(plain, command=["\udcff"]))


@pytest.mark.parametrize(
    ("words", "asked_to_stop", "code", "again"),
    [
        (("0", "0"), False, 0, False),
        (("0", "3"), False, 3, False),
        (("60", "0"), True, 0, True),
        (("deaf",), True, 0, True),
        (("0", f"{EXIT_LOST}"), False, 0, True),
    ],
)
def test_a_stopped_job_is_queued_again(
    tmp_path: Path, words: tuple[str, ...], asked_to_stop: bool, code: int, again: bool
) -> None:
    """The real script in a real shell; `scontrol` only notes that it was called."""
    with started("slurm", tmp_path, *words) as process:
        if asked_to_stop:
            time.sleep(0.1)
            process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == code
    assert (tmp_path / "queued").exists() == again
    if again:
        assert (tmp_path / "queued").read_text() == "requeue 8\n"


@pytest.mark.parametrize("system", ["slurm", "pbs"])
def test_a_job_that_lost_ranks_is_queued_again_so_many_times(
    tmp_path: Path, system: System
) -> None:
    """A node that died ended a job for good, where Slurm itself queues that of a bare `srun`."""
    queued, losses = tmp_path / "queued", tmp_path / "Net-1-8.losses"
    for number in (1, MAX_LOSSES, MAX_LOSSES + 1):
        losses.write_text("once\n" * (number - 1))
        with started(system, tmp_path, "0", f"{EXIT_LOST}", LOST=str(number - 1)) as process:
            assert process.wait(60) == (0 if number <= MAX_LOSSES else EXIT_LOST)
        assert queued.exists() == (number <= MAX_LOSSES)
        if system == "pbs" and queued.exists():
            assert queued.read_text() == f"-v LOST={number} {tmp_path}/job\n"
        queued.unlink(missing_ok=True)


@contextlib.contextmanager
def started(
    system: System, folder: Path, *words: str, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a job file whose program has begun; what queues it again writes its words down."""
    queue = folder / "bin" / {"slurm": "scontrol", "pbs": "qsub"}[system]
    queue.parent.mkdir(exist_ok=True)
    queue.write_text(f"#!/bin/sh\necho $* > {folder}/queued\n")
    queue.chmod(0o755)
    script = folder / "job"
    script.write_text(job_file(system, job(folder, *words)))
    path = f"{queue.parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", str(script)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PATH": path, "SLURM_JOB_ID": "8", **variables},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        yield process


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "2"], "--nodes is for a job file"),
        (["--go"], "--go is for a job file"),
        (["--submit", "slurm", "--hosts", "n0"], "--hosts is not for job files"),
        (["--submit", "slurm", "--image", "a"], "--image is for Kubernetes"),
        (["--submit", "slurm", "-n", "2", "--nodes", "0"], "--nodes 0 must be"),
        (["--submit", "k8s", "-n", "2"], "needs --image"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    command = [sys.executable, "-m", "phalanx", "launch", *words, "a.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["a.py"]
