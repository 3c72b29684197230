"""Data parallelism whose results have the same bits on any number of ranks.

The global batch is cut into a fixed number of micro-batches. The gradient of each is computed by
itself, from the same parameters and buffers, and they are summed in the order of a fixed tree
(`gradients/summation_tree.py`), whichever rank has computed them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from phalanx.comm.faults import is_fault_tolerant
from phalanx.comm.layout import share_of
from phalanx.comm.recovery import Recovery
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.reducer import ReduceTimes, dense_gradient
from phalanx.gradients.tree_reducer import OverlappedTreeReducer, TreeReducer
from phalanx.jobs.survival import num_spares
from phalanx.parallel.optimizer import OptimizerSource
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import StepOptions, SummedLoss, backward
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.surviving_group import SurvivingGroup
from phalanx.parallel.world_group import WorldGroup
from phalanx.torch_backend.threads import stop_filling_memory


class Bitwise(Strategy):
    """Replicas that sum the gradients of micro-batches in a fixed order; also a single process.

    Each micro-batch of a step begins with the buffers of the step before. Those of floating point,
    such as running statistics, become the mean over the micro-batches; others, such as the number
    of updates, what one micro-batch makes of them.
    """

    collective = "tree"
    name = "mpi"
    sums_losses = True

    def __init__(
        self,
        world: World | None,
        *,
        micro_batches: int,
        overlaps: bool = False,
        step_options: StepOptions | None = None,
    ) -> None:
        """world: None for a single process. micro_batches: of a full global batch. overlaps:
        gradients are summed while the last backward pass of a step runs."""
        super().__init__(_group_of(world), step_options)
        self.num_micro_batches = self.num_blocks = micro_batches
        self._owners = {
            rank: tuple(share_of(rank, self.size, micro_batches)) for rank in range(self.size)
        }
        if isinstance(self.group, SurvivingGroup):
            self.numbers = self._owners[self.rank]
            self.group.follow(self._go_on)
        self._is_in_step = False
        self._overlaps = overlaps and self.size > 1
        self._tree_reducer: TreeReducer | None = None

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        check_batch_norm(model)
        super().prepare(model, rule)
        self.group.together(lambda: self.group.broadcast_model(model))
        buffers = list(model.buffers())
        self._buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
        self._counters = [buffer for buffer in buffers if not buffer.is_floating_point()]
        # Weighted losses, weights, correct predictions.
        self._losses = torch.zeros(3, dtype=torch.float64, device="cpu")
        self._tree_reducer = self._make_reducer()
        self._closing.callback(self._tree_reducer.close)

    def _make_reducer(self) -> TreeReducer:
        world = self.group.world if isinstance(self.group, WorldGroup) else None
        likes, number = [self._losses, *self._parameters, *self._buffers], self.num_micro_batches
        if world is not None and self._overlaps:
            return OverlappedTreeReducer(likes, self._parameters, number, world)
        if (owners := self._owners_of_gradients()) is None:
            return TreeReducer(likes, number, world)
        return TreeReducer(likes, number, world, [None, *owners, *[None] * len(self._buffers)])

    @property
    def _reducer(self) -> TreeReducer:
        assert self._tree_reducer is not None, "prepare() comes first"
        return self._tree_reducer

    def begin_micro_batch(self, number: int, samples: int, of_samples: int) -> None:
        if not self._is_in_step:
            whole = self.num_micro_batches
            leaves = [leaf for leaf in range(whole) if share_of(leaf, whole, of_samples)]
            self._reducer.begin(list(self._owners.values()), leaves)
            self._before = [(b, b.clone()) for b in (*self._buffers, *self._counters)]
            self._is_in_step = True
        else:
            for buffer, before in self._before:
                buffer.copy_(before)
        self._losses.zero_()
        self._micro_batch, self._num_samples = number, samples
        self._global_samples = of_samples

    def note_loss(self, weighted_loss: float, weight: float) -> None:
        self._losses += torch.tensor([weighted_loss, weight, 0], dtype=torch.float64, device="cpu")

    def note_correct(self, number: int) -> None:
        """Note the correct predictions of the micro-batch, before its backward pass."""
        self._losses[2] += number

    @torch.no_grad()
    def end_micro_batch(self) -> None:
        gradients = [dense_gradient(parameter) for parameter in self._parameters]
        self.clear_gradients()
        if self._num_samples:  # else padding, of a rank without samples
            share = self._num_samples / self._global_samples
            buffers = torch._foreach_mul(self._buffers, share) if self._buffers else ()
            self._reducer.add(self._micro_batch, [self._losses.clone(), *gradients, *buffers])

    def backward_and_reduce(
        self, loss_sum: Tensor, weight: float, inputs: Sequence[nn.Parameter] | None = None
    ) -> ReduceTimes:
        reducer, last = self._reducer, self._micro_batch if self._num_samples else None
        overlapped = reducer if isinstance(reducer, OverlappedTreeReducer) else None
        with nullcontext() if overlapped is None else overlapped.last_pass(last):
            backward(loss_sum, weight, inputs)
        began = time.perf_counter()
        self.end_micro_batch()
        try:
            losses, *sums = self.group.together(self._reduce)
        except IncompleteError:
            return ReduceTimes(0.0)
        self._reducer.clear()
        self.missing = ()  # as of a rank that was given the sums
        self._is_in_step, self.summed = False, SummedLoss(*losses.tolist())
        stop_filling_memory()
        self._take_gradients(sums[: len(self._parameters)])
        if self._buffers:
            torch._foreach_copy_(self._buffers, sums[len(self._parameters) :])
        if overlapped is not None:
            return overlapped.times
        return ReduceTimes(time.perf_counter() - began if self.size > 1 else 0.0)

    def _owners_of_gradients(self) -> Sequence[int] | None:
        """Return the only rank that needs each parameter's gradient; None: all need all."""
        return None

    def _take_gradients(self, sums: Sequence[Tensor]) -> None:
        for parameter, total in zip(self._parameters, sums, strict=True):
            parameter.grad = self._private(parameter, total)

    def _private(self, parameter: nn.Parameter, total: Tensor) -> Tensor:
        """Return a sum in memory that neither other ranks nor later steps see, in the order in
        memory of the parameter."""
        if self.size == 1 and parameter.is_contiguous():
            return total
        return torch.empty_like(parameter).copy_(total)

    def gradients_are_finite(self) -> bool:
        return self._reducer.is_finite or super().gradients_are_finite()

    def _reduce(self) -> list[Tensor]:
        """Raises: IncompleteError while this rank has not computed all that it has to."""
        self.missing = self._reducer.missing(self.numbers or ())
        if self.missing:
            raise IncompleteError
        return self._reducer.reduce()

    def _go_on(self, recovery: Recovery) -> None:
        """Divide the micro-batches of the lost ranks among those that are left, who keep theirs."""
        if not self.group.is_waiting:
            self._share(self._owners, recovery.world)

    def regroup(self, members: Sequence[int]) -> None:
        """Divide the micro-batches evenly among other ranks from the next step on. members: by the
        numbers that they started with; some may have died since."""
        assert isinstance(self.group, SurvivingGroup), "ranks may die"
        number, size = self.num_micro_batches, len(members)
        even = {rank: tuple(share_of(at, size, number)) for at, rank in enumerate(members)}
        self._share(even, self.group.world)

    def _share(self, owners: Mapping[int, tuple[int, ...]], world: World) -> None:
        self._owners = inherit(owners, world.original_ranks)
        self.numbers = self._owners[world.original_rank]
        self.rank, self.size = self.data_rank, self.data_size = world.rank, world.size
        if self._tree_reducer is not None:  # else it is made with those who are left
            self._tree_reducer.rejoin(world, list(self._owners.values()))

    @property
    def counts(self) -> list[int]:
        """Numbers of micro-batches of the ranks."""
        return [len(own) for own in self._owners.values()]

    def divide(self, division: Sequence[Sequence[int]]) -> None:
        """Have each rank compute these micro-batches from the next step on: between two steps, and
        the same on all ranks."""
        assert not self._is_in_step, "what was computed of a step stays where it is"
        self._owners = dict(zip(self._owners, map(tuple, division), strict=True))
        self.numbers = list(self._owners.values())[self.rank]

    def synchronize_buffers(self) -> None:
        """Do nothing: they are the same after every step."""


def check_batch_norm(model: nn.Module) -> None:
    """Raise UserError for statistics of batch norm that depend on the ranks."""
    if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        raise UserError(
            "the model has SyncBatchNorm, whose statistics the ranks sum in their own order: "
            "bitwise runs take BatchNorm, of each micro-batch by itself"
        )


class IncompleteError(Exception):
    """Micro-batches of lost ranks are still to be computed."""


def inherit(
    owners: Mapping[int, tuple[int, ...]], left: Collection[int]
) -> dict[int, tuple[int, ...]]:
    """Return the micro-batches of the ranks that are left: theirs, and those of the others, one
    by one to whoever has the fewest. Pure, and by original ranks."""
    found = {rank: list(numbers) for rank, numbers in owners.items() if rank in left}
    for number in sorted(n for rank, own in owners.items() if rank not in left for n in own):
        min(found.values(), key=len).append(number)
    return {rank: tuple(sorted(numbers)) for rank, numbers in found.items()}


def _group_of(world: World | None) -> RunGroup:
    if world is None:
        return RunGroup()
    if not is_fault_tolerant():
        return WorldGroup(world)
    return SurvivingGroup(world, num_spares(os.environ))
