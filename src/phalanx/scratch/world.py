"""The other ranks, as far as a run needs them beside its scheme."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.group import Group


class WorldProtocol(Protocol):
    """Interface of `comm.world.World`, and of `OneProcess` where there is no MPI."""

    rank: int
    size: int
    local_rank: int

    @property
    def group(self) -> Group | None: ...

    def barrier(self, name: str = "barrier") -> None: ...

    def gather(
        self, values: NDArray[np.float64], *, root: int = 0
    ) -> NDArray[np.float64] | None: ...

    def close(self) -> None: ...


class OneProcess:
    """Nobody else."""

    rank, size, local_rank = 0, 1, 0
    group: Group | None = None

    def barrier(self, name: str = "barrier") -> None:
        """Everybody is here."""

    def gather(self, values: NDArray[np.float64], *, root: int = 0) -> NDArray[np.float64]:  # noqa: ARG002
        return values[None]

    def close(self) -> None:
        """There is nothing to give back."""
