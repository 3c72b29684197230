"""The ranks of a run outside of the mathematics: their messages, counts and records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from phalanx.comm.flight_recorder import FlightRecorder
from phalanx.comm.group import Group
from phalanx.comm.recovery import Recovery
from phalanx.comm.traffic import TrafficCounter
from phalanx.comm.world import World
from phalanx.records.spans import ClockReading, SpanRecorder, now_ns

T = TypeVar("T")


class RunGroup:
    """All ranks of a run, as one of them sees them; here one process, which waits for no rank.

    Methods are collective unless they say otherwise: all ranks call the same ones in the same
    order.
    """

    world: World | None = None
    """The ranks' connections over MPI; None: one process, or other connections."""
    library: str | None = None
    """The MPI library in use and its version."""
    node: int = 0
    """Number of this rank's node."""
    num_nodes: int = 1
    """Number of nodes; an emulated link makes none."""
    lost: Sequence[int] = ()
    """Ranks that died, by the numbers that they started with."""
    recovery_s: float = 0.0
    """Seconds of all recoveries together."""
    num_spares: int = 0
    """Number of spare ranks at the start."""
    is_waiting: bool = False
    """True if this rank is a spare that waits."""
    spans: SpanRecorder | None = None
    """Recorder of traced events."""

    def __init__(self, *, rank: int = 0, size: int = 1, local_rank: int = 0) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self._traffic = TrafficCounter() if size == 1 else None

    @property
    def num_living(self) -> int:
        """Number of ranks that live, spares too."""
        return self.size

    def follow(self, on_loss: Callable[[Recovery], None]) -> None:
        """Have `on_loss` called when ranks are lost and this one continues. Not collective."""

    def together(self, compute: Callable[[], T]) -> T:
        """Return what `compute` returns on every rank, the same on each. Collective; survivors
        repeat it if the group survives the loss of ranks."""
        return compute()

    def report_waits(self) -> None:
        """Report from now on how long this rank waits for others. Not collective."""

    def has_stop_request(self) -> bool:
        """Return whether a spare has reported to this rank that it was asked to stop. Not
        collective; within `together`."""
        return False

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        """Return every rank's values, in the order of the ranks, on rank 0; None elsewhere."""
        return [list(values)]

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        """Return every rank's values, in the order of the ranks, on every rank. They are counted
        as no part of the training."""
        return [list(values)]

    def name(self, rank: int) -> str:
        """Return what to call a rank: `rank 3`, or `rank 3 on host b`. Not collective."""
        return f"rank {rank}"

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums of the values over all ranks."""
        return list(values)

    def share(self, text: str) -> str:
        """Broadcast rank 0's `text`."""
        return text

    def broadcast(self, values: NDArray[np.uint8], root: int = 0) -> None:
        """Fill `values`, (n,), with those of the rank `root`, in place."""

    def gather_bytes(self, data: bytes) -> Iterable[bytes]:
        """Return every rank's bytes on rank 0, each received when it is asked for; elsewhere none.
        They are counted as no part of the training."""
        return [data]

    def gather_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:  # noqa: ARG002
        """Return every rank's rows, one below the other, on every rank. rows: contiguous, on the
        CPU. counts: rows of each rank."""
        return rows

    def sum_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:  # noqa: ARG002
        """Return the sum over the ranks of this rank's part of `rows`, (sum of counts, …)."""
        return rows

    def broadcast_model(self, model: nn.Module) -> None:
        """Give all ranks the parameters and buffers of rank 0."""

    def synchronize_buffers(self, model: nn.Module) -> None:
        """Give all ranks the same buffers: statistics of batch norm are the mean over the ranks
        that see samples, others are rank 0's."""

    def close(self) -> None:
        """Leave the group."""

    def depart(self, reason: str) -> None:
        """Report that this rank makes no more steps, to peers that wait for it in one, if ranks
        share memory. Everything else continues. Not collective."""

    def clock(self) -> ClockReading:
        """Return the offset of this rank's clock from rank 0's."""
        return ClockReading(at_ns=now_ns(), offset_ns=0)

    @property
    def traffic(self) -> TrafficCounter | None:
        """Counter of what this rank sends and receives for training; None: not counted."""
        return self._traffic

    def recorders(self) -> Sequence[FlightRecorder]:
        """Return the recorders of this rank's worlds, one for each. Not collective."""
        return ()

    def trace(self, spans: SpanRecorder | None) -> None:
        """Record events from now on in `spans`; None: nowhere. Not collective."""
        self.spans = spans
        for recorder in self.recorders():
            recorder.trace(spans)

    @property
    def is_node_leader(self) -> bool:
        """Return whether this rank is its node's in `node_leaders`: the first that is given
        samples."""
        return self.local_rank == 0

    def node_leaders(self) -> Group | None:
        """Return a new group of one rank of each node, for a thread of its own; None: there is one
        node, or this rank is none of these. Collective over those ranks."""
        return None

    def checkpoint_group(self) -> Group | None:
        """Return a group of all ranks that brings checkpoints to rank 0; None where no rank has
        anything that rank 0 lacks. Collective the first time; for use within `uncounted`."""
        return None

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Count nothing that is sent in the block as part of the training. Not collective."""
        yield
