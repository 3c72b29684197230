"""Under a real Slurm: srun by each type of MPI, ranks in an allocation, a requeued job."""

import json
import re
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from phalanx.records.files import read_run
from tests.conftest import PATIENCE
from tests.nodes.conftest import MakeNodes
from tests.nodes.mpi_nodes import INSTALLED
from tests.nodes.slurm import Slurm

pytestmark = [pytest.mark.nodes, pytest.mark.long, pytest.mark.timeout(600)]

PHALANX = (sys.executable, "-m", "phalanx")
TRAINING = (
    *("train", "--strategy", "mpi", "--dataset", "digits", "--train-samples", "240"),
    *("--validation-samples", "60", "--batch-size", "60", "--width", "16", "--threads", "1"),
)
TYPES = {"openmpi": ("pmix",), "mpich": ("pmi2",), "impi": ("pmi2", "pmix")}
"""What `srun` must offer to the ranks of each MPI; the first is what users are told."""


@pytest.mark.parametrize("kind", ["pmix", "pmi2", "none"])
def test_srun_starts_ranks_or_the_right_type_is_named(slurm: Slurm, kind: str) -> None:
    folder = slurm.shared / f"srun-{kind}"
    words = (*PHALANX, *TRAINING, "--epochs", "1", "--run-dir", str(folder))
    command = ["srun", "--nodes=2", "--ntasks=2", f"--mpi={kind}", *words]
    done = slurm.run("n0", command, environment=INSTALLED, timeout_s=120)
    if kind in TYPES[slurm.mpi.vendor]:
        assert done.returncode == 0, done.stdout
        assert "2 ranks" in done.stdout
        assert json.loads((folder / "run.json").read_text())["outcome"]["status"] == "completed"
    else:
        assert done.returncode != 0, done.stdout
        assert f"srun --mpi={TYPES[slurm.mpi.vendor][0]}" in done.stdout
    assert "Sorry!" not in done.stdout  # of Open MPI, where it does not find its files
    assert "MPI_ABORT" not in done.stdout


def test_ranks_of_an_allocation_are_on_its_nodes(slurm: Slurm) -> None:
    folder = slurm.shared / "salloc"
    words = (*PHALANX, *TRAINING, "--ranks", "2", "--epochs", "1", "--run-dir", str(folder))
    command = ["salloc", "--nodes=2", "--ntasks-per-node=1", *words]
    done = slurm.run("n0", command, environment=INSTALLED, timeout_s=120)
    assert done.returncode == 0, done.stdout
    hosts = [
        json.loads((folder / f"rank-{rank}.jsonl").read_text().splitlines()[0])["hostname"]
        for rank in range(2)
    ]
    assert len(set(hosts)) == 2, hosts


def test_a_requeued_job_ends_with_the_parameters_of_an_undisturbed_one(slurm: Slurm) -> None:
    """The job is requeued in mid-run, and resumes from its last checkpoint."""
    slow = "--slow-rank 0:0.2"
    script = f"""#!/bin/bash
cd $1
ls $1/epoch-*/manifest.json > /dev/null 2>&1 && resume="--resume $1"
exec srun --mpi={TYPES[slurm.mpi.vendor][0]} {" ".join([*PHALANX, *TRAINING])} {slow} \\
  --epochs 12 --checkpoint-dir $1 $resume
"""
    once, again = slurm.shared / "once", slurm.shared / "again"
    once.mkdir()
    again.mkdir()
    jobs = {
        folder: slurm.submit(script.replace("$1", str(folder)), "--nodes=2", "--requeue")
        for folder in (again, once)
    }
    while len(list(again.glob("epoch-*/manifest.json"))) < 2:
        assert slurm.state_of(jobs[again]) in ("PENDING", "RUNNING"), slurm.output_of(jobs[again])
        time.sleep(0.2)
    slurm.run("n0", ["scontrol", "requeue", str(jobs[again])])
    while slurm.state_of(jobs[again]) == "RUNNING":
        time.sleep(0.2)
    for job in jobs.values():
        assert slurm.wait_until_ended(job, 240) == "COMPLETED", slurm.output_of(job)
    second_life = slurm.output_of(jobs[again])
    assert "epoch 12/12" in second_life
    assert not re.search(r"epoch +1/12", second_life), second_life
    found, expected = (
        load_file(folder / "epoch-0012" / "model.safetensors") for folder in (again, once)
    )
    for key, tensor in expected.items():
        assert found[key].equal(tensor), key


def test_a_job_file_of_ours_queues_itself_again_before_its_time_is_over(slurm: Slurm) -> None:
    """Slurm gives a minute and says so 30 s before its end, in which the job would not be done."""
    here = slurm.shared / "submitted"
    job = submit(slurm, here, "--epochs", "40", limits=("--time", "1", "--notice", "30"))
    state, said = slurm.wait_until_ended(job, 400), output(here, job)
    assert state == "COMPLETED", said
    assert "as asked, with a checkpoint to resume from" in said
    assert "resuming from ckpt/" in said
    check_parameters(slurm, here, epochs=40)


def test_a_cancelled_job_has_saved_and_says_so(slurm: Slurm) -> None:
    """Slurm sends SIGTERM to all processes of a job. That to the daemons of Open MPI ended the
    ranks before they had saved, and the record told of a node that was gone."""
    here = slurm.shared / "cancelled"
    job = submit(slurm, here, "--epochs", "12")
    wait_for_epoch(slurm, here, job, 2)
    slurm.run("n0", ["scancel", str(job)])
    assert slurm.wait_until_ended(job) == "CANCELLED"
    until = time.monotonic() + 30 * PATIENCE
    while (outcome := read_run(here / "r").outcome).status == "running":
        assert time.monotonic() < until, output(here, job)
        time.sleep(0.1)
    assert outcome.status == "interrupted", (outcome, output(here, job))
    assert "as asked, with a checkpoint to resume from" in (outcome.error or "")
    done = slurm.run("n0", ["sbatch", f"--chdir={here}", str(here / "train.sbatch")])
    again = int(done.stdout.split()[-1])
    assert slurm.wait_until_ended(again, 240) == "COMPLETED", output(here, again)
    assert "resuming from ckpt/" in output(here, again)
    assert read_run(here / "r-2").outcome.status == "completed"
    check_parameters(slurm, here, epochs=12)


def test_a_job_of_which_a_node_dies_comes_back_by_itself(make_nodes: MakeNodes) -> None:
    """It failed for good, where Slurm itself queues that of a bare `srun` again."""
    with make_nodes(3) as made:
        slurm = Slurm(**vars(made))
        slurm.start_daemons()
        here = slurm.shared / "lost"
        job = submit(slurm, here, "--epochs", "12")
        wait_for_epoch(slurm, here, job, 3)
        slurm.power_off("n1")
        assert slurm.wait_until_ended(job, 240) == "COMPLETED", output(here, job)
        first, second = (read_run(here / name).outcome for name in ("r", "r-2"))
        assert first.status == "failed" and "(n1) ended without a word" in (first.error or "")
        assert second.status == "completed"
        assert "resuming from ckpt/" in output(here, job)
        assert len((here / f"train-{job}.losses").read_text().splitlines()) == 1
        check_parameters(slurm, here, epochs=12)


SLOW = (*TRAINING, "--slow-rank", "0:0.2", "--checkpoint-dir", "ckpt")


def submit(slurm: Slurm, here: Path, *words: str, limits: tuple[str, ...] = ()) -> int:
    """Write a job file of ours for a training on two nodes into a new folder, and submit it."""
    here.mkdir()
    job_file = (*PHALANX, "launch", "--submit", "slurm", "--nodes", "2", "-n", "2", *limits, "--go")
    program = str(Path(sys.executable).with_name("phalanx"))
    resumed = (program, *SLOW, "--resume", "ckpt", "--run-dir", "r", *words)
    command = ["env", "-C", str(here), *job_file, *resumed]
    done = slurm.run("n0", command, environment=INSTALLED)
    assert done.returncode == 0, done.stdout
    found = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert found, done.stdout
    return int(found[1])


def output(here: Path, job: int) -> str:
    """Return what all lives of such a job have said."""
    file = here / f"train-{job}.log"
    return file.read_text() if file.exists() else ""


def wait_for_epoch(slurm: Slurm, here: Path, job: int, epoch: int) -> None:
    while not re.search(rf"epoch +{epoch}/", output(here, job)):
        assert slurm.state_of(job) in ("PENDING", "RUNNING"), output(here, job)
        time.sleep(0.2)


def check_parameters(slurm: Slurm, here: Path, *, epochs: int) -> None:
    """Check that the run has ended with the bits of one that nobody disturbed."""
    alone = here / "undisturbed"
    alone.mkdir()
    words = ["env", "-C", str(alone), *PHALANX, *SLOW, "--ranks", "2", "--epochs", str(epochs)]
    command = ["salloc", "--nodes=2", *words]
    done = slurm.run("n0", command, environment=INSTALLED, timeout_s=200)
    assert done.returncode == 0, done.stdout
    again, once = (
        load_file(folder / "ckpt" / f"epoch-{epochs:04d}" / "model.safetensors")
        for folder in (here, alone)
    )
    for key, tensor in once.items():
        assert again[key].equal(tensor), key
