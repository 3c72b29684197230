"""What the training loop asks of a way to split the work. A strategy a file beside this one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.comm.update import UpdateRule


class UpdateTimes(NamedTuple):
    """Seconds of an update; what the call took beyond these was the optimizer."""

    backward_s: float
    """The rank's own arithmetic."""
    communication_s: float
    """What the rank spent on, and waited for, the others after that."""


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
    communicated_bytes: int = 0  # gradient bytes that this rank has handed to the others
    optimizer: Optimizer
    """There once `prepare` has been called. Its `param_groups` take the learning rate; its state
    is torch.optim's, by the same names, so that checkpoints fit every strategy."""

    @abstractmethod
    def prepare(self, model: nn.Module, rule: UpdateRule) -> nn.Module:
        """Give every rank the weights of rank 0, and make the optimizer; returns the module to
        call in the forward pass."""

    @abstractmethod
    def update(self, loss_sum: Tensor, global_samples: int) -> UpdateTimes:
        """One step of the optimizer, by the gradient of the mean loss over the global batch.

        loss_sum: 0-dim, the sum over this rank's samples.
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


def backward(parameters: Iterable[nn.Parameter], loss_sum: Tensor, weight: float) -> None:
    """Leave in each parameter's `grad` the gradient of `weight` times the loss, and nothing of
    what was there before."""
    for parameter in parameters:
        parameter.grad = None
    loss_sum.backward(torch.tensor(weight, dtype=loss_sum.dtype))
