"""A real Slurm on virtual nodes: slurmctld on n0, slurmd on every node."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import PATIENCE
from tests.nodes.cluster import PATH, SCRIPTS
from tests.nodes.mpi_nodes import INSTALLED, Nodes

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "runuser")
START_TIMEOUT_S = 60.0
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")

# Without cgroups. A requeued job may start again at once, not only after the two minutes in which
# its former credentials would be valid.
CONFIGURATION = """\
ClusterName=virtual
SlurmctldHost=n0
AuthType=auth/munge
CredType=cred/munge
AuthInfo=cred_expire=5
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.%n.pid
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2
ReturnToService=2
MpiDefault=none
KillWait=30
SlurmdTimeout=20
MessageTimeout=90
JobRequeue=1
NodeName={nodes} CPUs=2 State=UNKNOWN
PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def missing() -> str | None:
    """Return the reason why this machine can have no Slurm on its virtual nodes; None if it can."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if not lacking:
        return None
    return f"Slurm on virtual nodes needs {', '.join(lacking)}: docs/architecture.md"


@dataclass(frozen=True, kw_only=True)
class Slurm(Nodes):
    """Virtual nodes with a running Slurm, each of two CPUs."""

    def start_daemons(self) -> None:
        """Start munge and Slurm everywhere; return when all nodes are idle."""
        (self.state / "slurm").mkdir()
        text = CONFIGURATION.format(nodes=",".join(self.nodes))
        (self.state / "slurm" / "slurm.conf").write_text(text)
        (self.state / "munge.key").write_bytes(os.urandom(128))
        for node in self.nodes:
            done = self.run(node, ["bash", str(SCRIPTS / "slurm.sh")])
            assert done.returncode == 0, done.stdout
        end = time.monotonic() + START_TIMEOUT_S * PATIENCE
        while (states := self._states()) != ["idle"] * len(self.nodes):
            assert time.monotonic() < end, states
            time.sleep(0.2)

    def _states(self) -> list[str]:
        return self.run("n0", ["sinfo", "--noheader", "--Node", "--format=%T"]).stdout.split()

    def submit(self, script: str, *flags: str) -> int:
        """Submit a batch script from n0; return the number of the job.

        Its output is in the shared folder, `slurm-<number>.out`, unless it says otherwise.
        """
        file = self.shared / f"job-{time.monotonic_ns()}.sh"
        file.write_text(script)
        words = ["sbatch", "--parsable", f"--chdir={self.shared}", *flags, str(file)]
        done = self.run("n0", words, environment=INSTALLED)
        assert done.returncode == 0, done.stdout
        return int(done.stdout.split(";")[0])

    def state_of(self, job: int) -> str:
        """Return the state of a job as Slurm names it, such as RUNNING."""
        shown = self.run("n0", ["scontrol", "--oneliner", "show", "job", str(job)]).stdout
        found = re.search(r"\bJobState=(\w+)", shown)
        assert found, shown
        return found[1]

    def wait_until_ended(self, job: int, timeout_s: float = 120) -> str:
        """Return the last state of a job. Fails the test if it does not end in time."""
        end = time.monotonic() + timeout_s * PATIENCE
        while (state := self.state_of(job)) not in ENDED:
            assert time.monotonic() < end, f"job {job} is {state}\n{self.output_of(job)}"
            time.sleep(0.5)
        return state

    def output_of(self, job: int) -> str:
        """Return what the job has printed; nothing before it has begun."""
        file = Path(self.shared, f"slurm-{job}.out")
        return file.read_text() if file.exists() else ""
