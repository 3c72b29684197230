"""Data parallelism over MPI, written out by hand.

Every rank has the whole model and a part of each global batch. The gradients of all ranks are
summed, after the backward pass or while it runs, and every rank makes the same update.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.bucketed_reducer import Method
from phalanx.gradients.compression.compressor import Compressor, Uncompressed
from phalanx.gradients.make_reducer import is_worth_hiding, make_reducer
from phalanx.gradients.norms import square_of
from phalanx.gradients.reducer import GradReducer, RankLocalState, ReduceTimes
from phalanx.parallel.costs import all_reduce_formula, data_parallel_costs
from phalanx.parallel.optimizer import OptimizerSource
from phalanx.parallel.options import Overlap
from phalanx.parallel.step import StepOptions, SummedLoss, backward
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.events import ExpectedCosts


class MPI(Strategy):
    """Data parallelism by a reducer of gradients.

    Those that are neither compressed nor summed during the backward pass are reduced as one flat
    vector: all ranks of a node read the sums from one place. Else they are reduced bucket by
    bucket. A parameter that the loss does not reach has a gradient of zeros; a frozen one has none.
    """

    recomputes = True
    reducer: GradReducer
    """Set by `prepare`."""

    def __init__(
        self,
        world: World,
        *,
        method: Method = "auto",
        compressor: Compressor | None = None,
        overlap: Overlap = "auto",
        bucket_bytes: int | None = None,
        step_options: StepOptions | None = None,
    ) -> None:
        """compressor: None for none. overlap auto: where a network carries the gradients.
        bucket_bytes: of a bucketed reducer; None: as cache and network allow."""
        super().__init__(WorldGroup(world), step_options)
        self._world = world
        self._method = method
        self._compressor = compressor or Uncompressed()
        self._overlaps = world.size > 1 and (
            is_worth_hiding(world) if overlap == "auto" else overlap == "on"
        )
        self._bucket_bytes = bucket_bytes

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        """Raise UserError when the ranks cannot sum in the way that is asked for."""
        super().prepare(model, rule)
        self.group.broadcast_model(model)
        try:
            self.reducer = make_reducer(
                self._world,
                self._parameters,
                self._compressor,
                method=self._method,
                bucket_bytes=self._bucket_bytes,
                overlaps=self._overlaps,
            )
            self._closing.callback(self.reducer.close)
            self.collective = self.reducer.name
            self.sums_losses = self.reducer.carried is not None
        except ValueError as error:
            raise UserError(f"--all-reduce {self._method}: {error}; leave it out") from error

    def backward_and_reduce(
        self, loss_sum: Tensor, weight: float, inputs: Sequence[nn.Parameter] | None = None
    ) -> ReduceTimes:
        reducer, carried = self.reducer, self.reducer.carried
        if carried is not None:
            carried[:] = self._take_noted()
        with reducer:
            backward(loss_sum, weight, inputs)
        if carried is not None:
            self.summed = SummedLoss(*carried.tolist())
        return reducer.times

    def gradients_are_finite(self) -> bool:
        return self.reducer.is_finite()

    def gradient_square(self) -> float:
        return sum(map(square_of, self.reducer.sums()))

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        """Return expected costs; before the first step, with the buckets as they most likely will
        be."""
        size = self._parameters[0].element_size()
        traffic = self.reducer.expected_traffic()
        formula = all_reduce_formula(str(self.collective), self.rank, self.size, size)
        if self.size > 1 and self._compressor.name != "none":
            formula = f"{self._compressor.name} of {formula}"
        sent, received = traffic[:2] if traffic else (None, None)
        return data_parallel_costs(self._trained, sent, received, formula)

    def rank_local_state(self) -> RankLocalState | None:
        return self.reducer.rank_local_state()

    def load_rank_local_state(self, state: RankLocalState) -> bool:
        return self.reducer.load_rank_local_state(state)
