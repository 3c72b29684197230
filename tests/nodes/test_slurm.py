"""Under a real Slurm: srun by each type of MPI, ranks in an allocation, a requeued job."""

import json
import re
import sys
import time

import pytest
from safetensors.torch import load_file

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
    slow = (*TRAINING, "--epochs", "40", "--slow-rank", "0:0.2", "--checkpoint-dir", "ckpt")
    for name in ("submitted", "undisturbed"):
        (slurm.shared / name).mkdir()
    here = slurm.shared / "submitted"
    submit = (*PHALANX, "launch", "--submit", "slurm", "--nodes", "2", "-n", "2")
    words = (*submit, "--time", "1", "--notice", "30", "--go", "phalanx", *slow, "--resume", "ckpt")
    done = slurm.run("n0", ["env", "-C", str(here), *words], environment=INSTALLED)
    assert done.returncode == 0, done.stdout
    found = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert found, done.stdout
    job = int(found[1])
    state, said = slurm.wait_until_ended(job, 400), (here / f"train-{job}.log").read_text()
    assert state == "COMPLETED", said
    assert "as asked, with a checkpoint to resume from" in said
    assert "resuming from ckpt/" in said
    alone = ["salloc", "--nodes=2", "env", "-C", str(slurm.shared / "undisturbed"), *PHALANX, *slow]
    done = slurm.run("n0", [*alone, "--ranks", "2"], environment=INSTALLED, timeout_s=200)
    assert done.returncode == 0, done.stdout
    again, once = (
        load_file(slurm.shared / name / "ckpt" / "epoch-0040" / "model.safetensors")
        for name in ("submitted", "undisturbed")
    )
    for key, tensor in once.items():
        assert again[key].equal(tensor), key
