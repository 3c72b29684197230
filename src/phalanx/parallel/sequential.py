"""One process: the truth that every other strategy is held to."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor, nn

from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.formulas import data_parallel_state
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.parallel.strategy import Strategy, UpdateTimes, backward
from phalanx.records.schema import ExpectedCosts


class Sequential(Strategy):
    def __init__(self) -> None:
        self.rank, self.size, self.local_rank = 0, 1, 0
        self.data_rank, self.data_size = 0, 1

    def prepare(self, model: nn.Module, rule: OptimizerConfig) -> None:
        super().prepare(model, rule)
        self._rule = rule
        self.optimizer = torch_optimizer(rule, self._parameters)

    def update(self, loss_sum: Tensor, global_targets: int) -> UpdateTimes:
        began = time.perf_counter()
        backward(loss_sum, self.loss_weight(global_targets))
        computed = time.perf_counter()
        self.step_optimizer()
        return UpdateTimes(backward_s=computed - began, communication_s=0.0)

    def traffic(self) -> tuple[int, int]:
        return 0, 0

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        num_bytes = sum(parameter.nbytes for parameter in self._parameters)
        size = self._parameters[0].element_size()
        state_bytes, state_formula = data_parallel_state(self._rule, size, num_bytes)
        return ExpectedCosts(
            sent_bytes=0,
            received_bytes=0,
            state_bytes=state_bytes,
            state_formula=state_formula,
        )

    def barrier(self) -> None:
        pass

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values)]

    def share(self, text: str) -> str:
        return text

    def close(self) -> None:
        pass
