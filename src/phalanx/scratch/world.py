"""The world of ranks, as far as a run needs it beside its scheme."""

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
    """World of a single process without MPI."""

    rank, size, local_rank = 0, 1, 0
    group: Group | None = None

    def barrier(self, name: str = "barrier") -> None:
        """Return at once: there are no peers."""

    def gather(self, values: NDArray[np.float64], *, root: int = 0) -> NDArray[np.float64]:  # noqa: ARG002
        return values[None]

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
