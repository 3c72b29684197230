"""Passes of a step that can be made again, to name the ranks whose own gradients are not finite:
their sums have replaced them."""

from __future__ import annotations

from phalanx.gradients.norms import NonFiniteGradients, find_nonfinite
from phalanx.parallel.step import backward, trained_parameters
from phalanx.parallel.strategy import Strategy
from phalanx.run.batch import MicroBatch
from phalanx.run.program_loss import LossOf
from phalanx.run.randomness import seed_micro_batch


class StepPasses:
    """Micro-batches of a step and their losses, as `run.step` was given them."""

    def __init__(self, strategy: Strategy, seed: int) -> None:
        """seed: of the random numbers of micro-batches."""
        self._strategy, self._seed = strategy, seed
        self._noted: list[tuple[MicroBatch, LossOf]] = []

    def __len__(self) -> int:
        return len(self._noted)

    def clear(self) -> None:
        """Forget those of the last step."""
        self._noted.clear()

    def note(self, batch: MicroBatch, loss: LossOf) -> None:
        """Note a micro-batch, before its forward pass."""
        if self._strategy.recomputes:
            self._noted.append((batch, loss))

    def find_nonfinite(self) -> NonFiniteGradients:
        """Compute this rank's gradients again, and return those that are not finite. Not
        collective. Cost: as much as a step without its sums."""
        strategy, loss_sum = self._strategy, 0.0
        strategy.clear_gradients()
        with strategy.no_sync():
            for batch, loss in self._noted:
                if batch.num_samples:
                    seed_micro_batch(self._seed, batch.step, batch.number)
                    value = loss(strategy.module(batch.inputs), batch.targets)
                    backward(value, 1.0)
                    loss_sum += value.item()
        gradients = [p.grad for p in trained_parameters(strategy.model).values()]
        found = find_nonfinite(gradients, loss_sum)
        strategy.clear_gradients()
        return found
