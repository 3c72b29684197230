"""What the training loop asks of a way to split the work. A strategy a file beside this one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn


class Strategy(ABC):
    """One rank's side of the work. Everything here but the attributes is collective: all ranks
    call the same methods in the same order.

    Every rank computes the sum of its samples' losses; gradients are those of the mean over the
    *global* batch, so the split changes the time and not the mathematics, even when ranks hold
    different numbers of samples.
    """

    rank: int
    size: int
    local_rank: int
    collective: str | None = None  # what carries the gradients, for the records
    library: str | None = None  # the MPI library in use and its version
    communicated_bytes: int = 0  # gradient bytes that this rank has handed to all-reduce

    @abstractmethod
    def prepare(self, model: nn.Module) -> nn.Module:
        """Give every rank the weights of rank 0; returns the module to call in the forward pass."""

    @abstractmethod
    def backward(self, loss_sum: Tensor, global_samples: int) -> float:
        """Leave in every parameter's `grad` the gradient of the mean loss over the global batch.

        loss_sum: 0-dim, the sum over this rank's samples.
        Returns: `time.perf_counter()` at which this rank's own arithmetic was done; the rest of
        the call was waiting for communication.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank is here."""

    @abstractmethod
    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        """Every rank's values, in the order of the ranks, on rank 0; None elsewhere."""

    @abstractmethod
    def share(self, text: str) -> str:
        """Rank 0's `text` on every rank."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the strategy holds; the model keeps its parameters."""
