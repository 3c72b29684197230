"""The ranks of a job: how many, on which nodes, by which MPI, on how many threads each."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property

from phalanx.errors import UserError
from phalanx.jobs.allocation import THIS_MACHINE, Allocation, allocation, check_ranks
from phalanx.jobs.binding import cores_of_rank, describe_places, threads_of_rank
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.detect import Launched
from phalanx.jobs.installation import MpiInstallation, find_mpi
from phalanx.jobs.survival import check_spares, check_started, check_survival, ranks_beside

DEFAULT_STOP_S = 30.0
"""Seconds for ranks to save and stop: Kubernetes and Slurm give as much by default."""


@dataclass(frozen=True, kw_only=True)
class RankRequest:
    """Ranks that a command asks for, on the nodes that the user or a batch system names."""

    ranks: int | None
    """Number of those that compute. None: those that a launcher has started, else `default`."""
    default: int | None = None
    """None: one a slot of the nodes where there are several, else one a core."""
    idle: int = 0
    """Ranks that need no core of their own, such as parameter servers."""
    threads: int | None = None
    """Compute threads of each; None: its share of the cores of its node."""
    spares: int = 0
    survive: bool = False
    uses_mpi: bool = True
    """False: MPI's launcher starts them only on nodes that the user names."""
    is_alone: bool = False
    """True if one process is asked for, which no launcher starts."""

    @cached_property
    def has_launcher(self) -> bool:
        """True if an MPI's launcher starts the ranks."""
        if self.is_alone:
            return False
        return self.uses_mpi or allocation(os.environ).reaches_user_nodes

    @cached_property
    def mpi(self) -> MpiInstallation | None:
        """MPI that starts the ranks; None: they are processes without a launcher.

        Raises: UserError where there is none.
        """
        return find_mpi(os.environ) if self.has_launcher else None

    @cached_property
    def nodes(self) -> Allocation:
        """Nodes on which the ranks are started, as they were then: files that name them may be gone
        at the end."""
        return allocation(os.environ) if self.has_launcher else THIS_MACHINE

    @property
    def num_ranks(self) -> int:
        """Return the number of those that compute; as all below, of a complete request."""
        assert self.ranks is not None, "complete() comes first"
        return self.ranks

    @property
    def num_processes(self) -> int:
        """Return the number of ranks, spares included."""
        return self.num_ranks + self.spares

    @property
    def num_nodes(self) -> int:
        """Return on how many nodes they are."""
        return len(self.nodes.used(self.num_ranks)) or 1

    def threads_as_here(self) -> int:
        """Return the threads of each if every node has as many cores as this one."""
        return max(1, usable_cores() // self.nodes.max_local_ranks(self.num_ranks))

    @property
    def places(self) -> list[str]:
        """Return lines for the user on where they are, as `describe_places`."""
        return describe_places(self.num_processes, self.nodes)

    def check_nodes(self) -> None:
        """Raise UserError for more ranks than the nodes take."""
        check_ranks(self.num_processes, os.environ if self.has_launcher else {})

    def complete(self, launched: Launched | None) -> RankRequest:
        """Fill in the number of ranks, and the threads of each on this node. launched: by the
        user's own launcher; None: they are yet to be started.

        Raises: UserError where they do not fit the launcher, the nodes or the MPI.
        """
        ranks = self._number(launched)
        if self.survive and launched is not None:
            check_started(launched, os.environ)
        elif self.survive:
            check_survival(self.mpi, os.environ)
        check_spares(self.spares, ranks, survive=self.survive)
        if launched is None:
            started = self.on(ranks)
            started.check_nodes()
            return started
        if self.spares:
            raise UserError(
                f"--spares {self.spares}: {launched.launcher} started the ranks, and supports no "
                "spares: leave that launcher out"
            )
        here = launched.local_world_size or allocation(os.environ).max_local_ranks(ranks)
        threads = self.threads or cores_of_rank(here, os.environ)
        return replace(self, ranks=ranks, threads=threads)

    def on(self, ranks: int) -> RankRequest:
        """Return the request for so many ranks, with the threads of each."""
        threads = self.threads or threads_of_rank(ranks, self.nodes)
        return replace(self, ranks=ranks, threads=threads)

    def _number(self, launched: Launched | None) -> int:
        if launched is not None:
            if self.ranks not in (None, launched.world_size):
                raise UserError(
                    f"--ranks {self.ranks}, but {launched.launcher} started {launched.world_size}: "
                    "leave --ranks out under a launcher"
                )
            return launched.world_size
        if asked := self.ranks or self.default:
            return asked
        nodes = self.nodes
        if nodes.is_named or not nodes.is_one_machine:
            return ranks_beside(self.spares, sum(nodes.slots))
        return usable_cores() + self.idle
