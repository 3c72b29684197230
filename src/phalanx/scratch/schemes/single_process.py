"""Training in one process: the reference for all other schemes."""

from __future__ import annotations

from phalanx.scratch.arrays import Array, Labels
from phalanx.scratch.loss import BatchResult
from phalanx.scratch.momentum import Momentum
from phalanx.scratch.network import FeedForwardNetwork
from phalanx.scratch.schemes.scheme import Scheme


class SingleProcess(Scheme):
    """Without peers there is nothing to combine or to distribute."""

    def __init__(self, network: FeedForwardNetwork, optimizer: Momentum) -> None:
        """optimizer: of the network's parameters."""
        self.network, self.optimizer = network, optimizer

    def local_batch(self, batch: range) -> range:
        return batch

    def forward(self, inputs: Array, labels: Labels) -> BatchResult:
        return self.network.forward(inputs, labels)

    def backward(self, global_batch_size: int) -> None:
        self.network.backward(global_batch_size)

    def update(self) -> None:
        self.optimizer.step(self.network.gradients)

    def full_parameters(self) -> Array:
        return self.network.parameters
