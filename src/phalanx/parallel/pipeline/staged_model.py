"""A model whose stages are on several ranks, called as one."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from phalanx.errors import UserError


class Predicting(Protocol):
    """Stages of a model on the ranks of a pipeline."""

    def predict_everywhere(self, inputs: Tensor) -> Tensor:
        """Return the outputs for `inputs` on every rank of the pipeline. Collective."""


class StagedModel(nn.Module):
    """The whole model for evaluations: every rank of a pipeline calls it with the same inputs, and
    gets its outputs."""

    def __init__(self, stages: Predicting) -> None:
        super().__init__()
        self._stages = stages

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs. Raises: UserError where gradients are wanted."""
        if torch.is_grad_enabled():
            raise UserError(
                "the stages of a pipeline compute forward pass, loss and backward pass in one "
                "call: run.step(batch, loss) in place of run.model and run.backward"
            )
        return self._stages.predict_everywhere(inputs)
