"""Interface of a scheme: the five phases of a step, in this order."""

from __future__ import annotations

from typing import Literal, Protocol

from phalanx.scratch.arrays import Array, Labels
from phalanx.scratch.loss import BatchResult

Role = Literal["worker", "server"]


class Scheme(Protocol):
    """The phases of a step. The bodies here are those of a scheme without peers."""

    role: Role = "worker"

    @property
    def waited_s(self) -> float:
        """Seconds of `forward` and `backward` spent waiting for peers, so far."""
        return 0.0

    def local_batch(self, batch: range) -> range:
        """The samples of a global batch that go through this rank's network."""

    def reported(self, batch: range) -> slice:  # noqa: ARG002
        """Return the samples that this rank reports: over all ranks each sample once. All of what
        it computes, where no other rank computes the same."""
        return slice(None)

    def forward(self, inputs: Array, labels: Labels) -> BatchResult:
        """Compute the loss of this rank's samples; there may be none."""

    def backward(self, global_batch_size: int) -> None:
        """This rank's gradients of the mean loss over the global batch."""

    def combine(self) -> None:
        """Bring the gradients of all ranks together."""
        return

    def update(self) -> None:
        """Make one optimizer step on the parameters that this rank owns."""
        return

    def distribute(self) -> None:
        """Bring the new parameters to those who need them."""
        return

    def full_parameters(self) -> Array:
        """(n,) all parameters, in the order of one process. Collective."""
