"""Causes of sums that are not finite: a step's passes, made again, and, looked for last, its
data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phalanx.gradients.norms import NonFiniteGradients, find_nonfinite
from phalanx.parallel.step import backward, trained_parameters
from phalanx.parallel.strategy import Strategy
from phalanx.run.batch import MicroBatch
from phalanx.run.program_loss import LossOf
from phalanx.run.randomness import seed_micro_batch


def find_bad_sample(batch: MicroBatch, rank: int) -> str:
    """Return the first sample of a micro-batch with a NaN or an infinity; empty: there is none."""
    for part, tensor in _parts(batch.data, ""):
        bad = (~tensor.isfinite()).reshape(len(tensor), -1).any(1).nonzero()
        if len(bad):
            row = int(bad[0])
            value = tensor[row][~tensor[row].isfinite()].flatten()[0].item()
            of_batch = f"row {row} of micro-batch {batch.number} on rank {rank}"
            numbers = batch.indices if batch.indices is not None else ()
            has_number = len(numbers) == len(tensor)
            name = f"sample {int(numbers[row])} ({of_batch})" if has_number else of_batch
            return f"the data have {value} in {name}{part and f', in {part}'}"
    return ""


def _parts(data: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of nested data that may hold what is not finite, with their places."""
    if isinstance(data, dict):
        for key, part in data.items():
            yield from _parts(part, f"{name}[{key!r}]" if name else str(key))
    elif isinstance(data, (tuple, list)):
        words = ("inputs", "targets") if not name and len(data) == 2 else ()
        for number, part in enumerate(data):
            yield from _parts(part, words[number] if words else f"{name or 'data'}[{number}]")
    elif isinstance(data, np.ndarray) and data.dtype.kind in "fc":
        yield from _parts(torch.from_numpy(data), name)
    elif (
        isinstance(data, Tensor) and data.dim() and (data.is_floating_point() or data.is_complex())
    ):
        yield name, data.detach()


class StepPasses:
    """Micro-batches of a step and their losses, as `run.step` was given them: passes that can be
    made again, to name the ranks whose own gradients are not finite, which sums have replaced."""

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
