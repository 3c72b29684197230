"""Training in one process: the reference for all other schemes."""

from __future__ import annotations

from phalanx.scratch.arrays import Array, Labels
from phalanx.scratch.loss import BatchResult
from phalanx.scratch.momentum import Momentum
from phalanx.scratch.network import FeedForwardNetwork
from phalanx.scratch.schemes.scheme import Role


class SingleProcess:
    role: Role = "worker"

    def __init__(self, network: FeedForwardNetwork, optimizer: Momentum) -> None:
        """optimizer: of the network's parameters."""
        self.network, self.optimizer = network, optimizer

    @property
    def waited_s(self) -> float:
        return 0.0

    def local_batch(self, batch: range) -> range:
        return batch

    def reported(self, batch: range) -> slice:  # noqa: ARG002  # all of what it computes
        return slice(None)

    def forward(self, inputs: Array, labels: Labels) -> BatchResult:
        return self.network.forward(inputs, labels)

    def backward(self, global_batch_size: int) -> None:
        self.network.backward(global_batch_size)

    def combine(self) -> None:
        """Do nothing: there are no peers."""

    def update(self) -> None:
        self.optimizer.step(self.network.gradients)

    def distribute(self) -> None:
        """Do nothing: there are no peers."""

    def full_parameters(self) -> Array:
        return self.network.parameters
