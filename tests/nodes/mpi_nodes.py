"""Virtual nodes with the MPI of this environment, and jobs on them."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from phalanx.jobs.installation import MpiInstallation
from tests.conftest import ONE_THREAD, PATIENCE
from tests.nodes.cluster import Cluster

ROOT = Path(__file__).parents[2]
IDLE_RANKS = {"OMPI_MCA_mpi_yield_when_idle": "1", "I_MPI_THREAD_YIELD": "2"}
"""Each node believes to have all cores of this machine for itself."""
INSTALLED = {"PYTHONPATH": str(ROOT / "src"), **ONE_THREAD, **IDLE_RANKS}
"""Variables of every node: Phalanx is found there as an installed package would be."""


@dataclass(frozen=True, kw_only=True)
class Nodes(Cluster):
    """Virtual nodes with the MPI of this environment, which all of them see."""

    mpi: MpiInstallation

    def mpiexec(
        self, program: Sequence[str], *, num_nodes: int = 2, local_ranks: int = 1
    ) -> list[str]:
        """Return the command that runs `program` on the first `num_nodes` nodes, as users type it.

        local_ranks: on each node.
        """
        ranks = str(num_nodes * local_ranks)
        hosts = [self.host(node) for node in self.nodes[:num_nodes]]
        if self.mpi.vendor == "openmpi":
            names = ",".join(f"{host}:{local_ranks}" for host in hosts)
            flags = ["--allow-run-as-root", "--bind-to", "none", "-H", names]
        else:
            flags = ["-bind-to", "none", "-hosts", ",".join(hosts), "-ppn", str(local_ranks)]
        return [str(self.mpi.mpiexec), *flags, "-n", ranks, *program]

    def run_ranks(
        self,
        program: Path,
        *words: str,
        num_nodes: int = 2,
        local_ranks: int = 1,
        environment: Mapping[str, str] = MappingProxyType({}),
        timeout_s: float = 90,
    ) -> str:
        """Run a Python program on ranks, started from n0; return its output.

        Fails the test where the program fails.
        """
        command = self.mpiexec(
            [sys.executable, str(program), *words], num_nodes=num_nodes, local_ranks=local_ranks
        )
        done = self.run(
            "n0",
            command,
            environment={**INSTALLED, **environment},
            timeout_s=timeout_s * PATIENCE,
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}"
        return done.stdout
