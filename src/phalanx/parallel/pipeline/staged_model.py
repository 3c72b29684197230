"""A model whose stages are on several ranks, called as one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from phalanx.errors import UserError


class StagedModel(nn.Module):
    """The whole model for evaluations: every rank of a pipeline calls it with the same inputs, and
    gets its outputs."""

    def __init__(self, predict: Callable[[Tensor], Tensor]) -> None:
        """predict: returns the outputs for inputs on every rank of the pipeline. Collective."""
        super().__init__()
        self._predict = predict

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs. Raises: UserError where gradients are wanted."""
        if torch.is_grad_enabled():
            raise UserError(
                "the stages of a pipeline compute forward pass, loss and backward pass in one "
                "call: run.step(batch, loss) in place of run.model and run.backward"
            )
        return self._predict(inputs)
