"""Data parallelism: replicas of the model, whose gradients a reducer sums.

Every rank has the whole model and a part of each global batch. The gradients of all ranks are
summed, after the backward pass or while it runs, and every rank makes the same update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from phalanx.comm.recovery import Recovery
from phalanx.comm.world import World
from phalanx.gradients.division import Division
from phalanx.gradients.make_reducer import AllReduce, FixedTree
from phalanx.gradients.norms import sum_of_squares
from phalanx.gradients.reducer import GradReducer, RankLocalState, ReduceTimes
from phalanx.gradients.tree_reducer import OverlappedTreeReducer, TreeReducer, check_batch_norm
from phalanx.parallel.costs import all_reduce_formula, data_parallel_costs
from phalanx.parallel.optimizer import OptimizerSource
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import StepOptions, backward
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.surviving_group import SurvivingGroup
from phalanx.records.events import ExpectedCosts

FASTEST = AllReduce()


class Replicas(Strategy):
    """Data parallelism by a reducer of gradients; also a single process, the truth that every
    other strategy is held to.

    A parameter that the loss does not reach has a gradient of zeros on several ranks; a frozen one
    has none.
    """

    name = "mpi"
    reducer: GradReducer
    """Set by `prepare`."""

    def __init__(
        self,
        group: RunGroup,
        step_options: StepOptions | None = None,
        *,
        summation: AllReduce | FixedTree = FASTEST,
    ) -> None:
        """summation: how gradients are summed, and so whether results have the same bits on any
        number of ranks."""
        assert group.world is not None or group.size == 1, "sums need a World"
        super().__init__(group, step_options)
        self._summation, self.num_blocks = summation, summation.micro_batches
        self.recomputes = self.num_blocks is None
        if self.num_blocks is not None:
            self.division = Division(self.num_blocks, self.size)
        if self.division is not None and isinstance(group, SurvivingGroup):
            self.numbers = self.division.of(self.rank)
            group.follow(self._go_on)

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        """Raise UserError when the ranks cannot sum in the way that is asked for."""
        super().prepare(model, rule)
        self.group.together(lambda: self.group.broadcast_model(model))
        self.reducer = self._make_reducer()
        self._closing.callback(self.reducer.close)
        self.collective = self.reducer.name
        self.sums_losses = self.reducer.sums_losses

    def _make_reducer(self) -> GradReducer:
        summation, world = self._summation, self.group.world
        if isinstance(summation, AllReduce):
            return summation.make(self._parameters, world)
        assert self.division is not None, "of the micro-batches"
        check_batch_norm(self.model)
        buffers = list(self.model.buffers())
        if summation.overlaps and world is not None and world.size > 1:
            return OverlappedTreeReducer(self._parameters, buffers, self.division, world)
        return TreeReducer(
            self._parameters,
            buffers,
            self.division,
            world,
            owners=self._owners_of_sums(),
            together=self._sum_together,
        )

    def _owners_of_sums(self) -> Sequence[int] | None:
        """Return the only rank that needs each parameter's sum; None: all need all."""
        return None

    def _sum_together(self, compute: Callable[[], Any]) -> Any:
        """Return the sums that `compute` returns, the same on all ranks that are left."""
        return self.group.together(compute)

    # -- a step ------------------------------------------------------------------------------

    def begin_micro_batch(self, number: int, samples: int, of_samples: int) -> None:
        self.reducer.begin_micro_batch(number, samples, of_samples)

    def note_loss(self, weighted_loss: float, weight: float) -> None:
        self.reducer.note_loss(weighted_loss, weight)

    def end_micro_batch(self) -> None:
        self.reducer.end_micro_batch()

    def backward_and_reduce(
        self, loss_sum: Tensor, weight: float, inputs: Sequence[nn.Parameter] | None = None
    ) -> ReduceTimes:
        reducer = self.reducer
        with reducer:
            backward(loss_sum, weight, inputs)
        self.summed, self.missing = reducer.summed, reducer.missing
        return reducer.times

    def gradients_are_finite(self) -> bool:
        if self._held_numbers is None:
            return self.reducer.is_finite()
        return super().gradients_are_finite()

    def gradient_square(self) -> float:
        if self._held_numbers is None:
            return sum_of_squares(self.reducer.sums())
        return super().gradient_square()

    # -- around the steps --------------------------------------------------------------------

    def synchronize_buffers(self) -> None:
        if self.num_blocks is None:  # else they are the same after every step
            super().synchronize_buffers()

    def expected(self, global_batch_size: int) -> ExpectedCosts:
        """Return expected costs; before the first step, with the buckets as they most likely will
        be."""
        if self.group.world is None:
            return super().expected(global_batch_size)
        if not isinstance(self._summation, AllReduce):
            moved = 0 if self.size == 1 else None  # depends on which rank computed what
            return data_parallel_costs(self._trained, moved, moved)
        itemsize = self._parameters[0].element_size()
        formula = all_reduce_formula(str(self.collective), self.rank, self.size, itemsize)
        compressor, traffic = self._summation.compressor, self.reducer.expected_traffic()
        if self.size > 1 and compressor is not None and compressor.name != "none":
            formula = f"{compressor.name} of {formula}"
        sent, received = traffic[:2] if traffic else (None, None)
        return data_parallel_costs(self._trained, sent, received, formula)

    def rank_local_state(self) -> RankLocalState | None:
        return self.reducer.rank_local_state()

    def load_rank_local_state(self, state: RankLocalState) -> bool:
        return self.reducer.load_rank_local_state(state)

    # -- micro-batches, as they are divided among the ranks ----------------------------------

    def divide(self, owners: Sequence[Sequence[int]]) -> None:
        """Have each rank compute these micro-batches from the next step on: between two steps, and
        the same on all ranks."""
        assert self.division is not None, "of micro-batches"
        self.division.assign(owners)
        self.numbers = self.division.owners[self.rank]

    def regroup(self, members: Sequence[int]) -> None:
        """Divide the micro-batches evenly among other ranks from the next step on. members: by the
        numbers that they started with; some may have died since."""
        world = self.group.world
        assert self.division is not None and world is not None, "ranks may die"
        self.division.divide_evenly(members, world.original_ranks)
        self._enter(world)

    def _go_on(self, recovery: Recovery) -> None:
        """Divide the micro-batches of lost ranks among the survivors, which keep theirs."""
        if not self.group.is_waiting:
            assert self.division is not None, "of micro-batches"
            self.division.pass_on(recovery.world.original_ranks)
            self._enter(recovery.world)

    def _enter(self, world: World) -> None:
        assert self.division is not None, "of micro-batches"
        self.numbers = self.division.of(world.original_rank)
        self.rank, self.size = self.data_rank, self.data_size = world.rank, world.size
        if hasattr(self, "reducer"):  # else it is made with those who are left
            self.reducer.rejoin(world)
