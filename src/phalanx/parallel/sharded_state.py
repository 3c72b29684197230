"""Data parallelism whose optimizer state is divided among the ranks.

Each parameter has an owner, the one rank that keeps its state and updates it, by the optimizer of a
single process: the bits of an update depend on a parameter, its gradient and its state alone,
however many ranks own the others. Optimizers that update parameters jointly are refused.

Where ranks may be lost a second one holds a copy of the state and makes the same updates, so that
it has all of them when the owner dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from phalanx.comm.faults import is_fault_tolerant
from phalanx.comm.layout import CACHE_LINE_BYTES, by_owner
from phalanx.errors import UserError
from phalanx.gradients.make_reducer import AllReduce, FixedTree
from phalanx.gradients.reducer import ReduceTimes
from phalanx.parallel.costs import assign_owners, owned_costs
from phalanx.parallel.layerwise import LAMB, LARS
from phalanx.parallel.optimizer import OptimizerSource
from phalanx.parallel.parameter_memory import OneCopy, ParameterMemory
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.shard_holders import ShardHolders
from phalanx.parallel.step import Batch, StateBytes, StepOptions, storage_bytes
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.events import ExpectedCosts

NUM_HOLDERS = 2
"""Ranks that hold a shard's state, where ranks may be lost."""


class ShardedState(Replicas):
    """Replicas of which each updates the parameters that it owns, and gets the others from their
    owners. Parameters lie in one vector, those of an owner, a shard, side by side.

    In `ParameterMemory`, as `zero` (stages 1 and 2), all ranks are owners, and a reducer over
    messages may bring the sums of gradients to their owners alone; in `NodeMemory`, as `shared`,
    there are owners and memory on each node.

    Where ranks may be lost each shard has two holders, which make its updates: the other one in
    memory of its own, where the owner's is seen by all. Of a shard whose owner dies the other
    holder has the last update, and puts it in place of one that the death has cut short. After
    the step a third rank gets a copy. All ranks need all sums then: any may inherit a shard.
    """

    is_sharded = True
    runs_step_hooks = False

    def __init__(
        self,
        group: WorldGroup,
        step_options: StepOptions | None = None,
        *,
        memory: type[ParameterMemory],
        summation: AllReduce | FixedTree,
    ) -> None:
        """memory: of the parameters. summation: as of `Replicas`."""
        super().__init__(group, step_options, summation=summation)
        self.name = memory.name
        self._place = memory(group)
        self._own = group.world.original_rank
        self._shared_s = 0.0
        self._living: Sequence[int] = ()  # ranks among which the shards were held last
        self._restored_in = group.world
        self._shards: list[Tensor] = []
        self._copies: dict[int, Tensor] = {}
        """Local copies of parameters owned by other ranks in shared memory, by parameter index."""

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        """Raises: UserError for an optimizer that may update parameters jointly."""
        check_by_parameter(rule, self.name)
        super().prepare(model, rule)
        self._closing.callback(self._leave_memory)
        self._allocate([parameter.nbytes for parameter in self._parameters])
        for view, parameter in zip(self._views, self._parameters, strict=True):
            view.copy_(parameter.detach())  # the same by each rank that sees the memory
        self.group.together(lambda: self._place.world.barrier("the sharing of parameters"))
        self._note_held()
        self._one_copy = OneCopy(self._names, self._parameters)
        owners = self._holders.owners(self._place.owners())
        for number, (parameter, view) in enumerate(zip(self._parameters, self._views, strict=True)):
            parameter.data = view
            if not self._is_held[number]:
                self.optimizer.state.pop(parameter, None)
            elif self._place.is_shared and owners[self._shard_of[number]] != self._own:
                self._copies[number] = view.clone()

    def _allocate(self, sizes: Sequence[int]) -> None:
        """Make the memory of the parameters, on all ranks that are left. sizes: in bytes."""
        copies = NUM_HOLDERS if is_fault_tolerant() else 1
        made: list[Tensor] = []

        def allocate() -> None:
            made.clear()
            self._holders = ShardHolders(self._place.owners(), num_copies=copies)
            number = self._holders.num_shards
            self._shard_of = assign_owners(sizes, number)
            self._starts, self._cuts = by_owner(sizes, self._shard_of, number, CACHE_LINE_BYTES)
            made.append(self._place.allocate(self._cuts[-1].stop))

        self.group.together(allocate)
        while not all(row[0] for row in self.group.exchange([bool(made)])):
            self.group.together(allocate)  # ranks were lost when some of the others had it already
        (self._memory,) = made
        self._shards = [self._memory[cut.start : cut.stop] for cut in self._cuts]
        self._views = [
            view_like(parameter, self._memory[start : start + parameter.nbytes])
            for start, parameter in zip(self._starts, self._parameters, strict=True)
        ]

    def update(self) -> bool:
        if self._place.is_shared:
            self._one_copy.check()
        self._keep_held_gradients()
        with self._copies_in_place():
            is_updated = super().update()
        began = time.perf_counter()
        self._share_updates()
        self._one_copy.note()
        self._shared_s = time.perf_counter() - began
        return is_updated

    def exchange(self, batch: Batch, computed_at: float, *, is_updated: bool) -> float:  # noqa: ARG002
        return self._shared_s if is_updated else 0.0

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Return the state of the parameters of which this rank holds it.

        Raises: RunFailedError where all ranks that held a shard have died: those that are left
                would gather the others alone.
        """
        self._holders.check(self._place.world.original_ranks)
        held = zip(self._names, self._parameters, self._is_held, strict=True)
        return {name: self.optimizer.state[p] for name, p, is_held in held if is_held}

    def _held_gradients(self) -> list[Tensor | None]:
        if self._held_numbers is None:
            return super()._held_gradients()
        return [parameter.grad for parameter in self._held_parameters()]

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        return owned_costs(
            self._trained,
            self._place.formula,
            self._num_in_memory,
            held_bytes=sum(parameter.nbytes for parameter in self._held_parameters()),
            copied_bytes=sum(copy.nbytes for copy in self._copies.values()),
        )

    def state_bytes(self) -> StateBytes:
        """Return the rank's part of the parameters in its memory, its gradients and state."""
        whole = super().state_bytes()
        copied = storage_bytes(list(self._copies.values()))
        return whole._replace(parameters=whole.parameters // self._num_in_memory + copied)

    @property
    def _num_in_memory(self) -> int:
        """Number of ranks that hold the parameters' memory together."""
        return self._holders.num_shards if self._place.is_shared else 1

    def _leave_memory(self) -> None:
        for parameter in self._parameters:  # their memory may be one that others see
            parameter.data = parameter.data.clone()
        self._shards.clear()

    def _owners_of_sums(self) -> Sequence[int] | None:
        if not self._place.are_owners_alone or is_fault_tolerant():
            return None
        return assign_owners([parameter.nbytes for parameter in self._parameters], self.size)

    def backward_and_reduce(
        self, loss_sum: Tensor, weight: float, inputs: Sequence[nn.Parameter] | None = None
    ) -> ReduceTimes:
        times = super().backward_and_reduce(loss_sum, weight, inputs)
        if self.reducer.is_divided and self._held_numbers is None:
            self._held_numbers = [number for number, held in enumerate(self._is_held) if held]
        return times

    def _scale_gradients(self, factor: float) -> None:
        self._keep_held_gradients()
        if any(self._is_held):  # there may be more ranks than parameters
            super()._scale_gradients(factor)

    def _keep_held_gradients(self) -> None:
        """Drop the others', once they are checked: an optimizer passes such parameters over."""
        for parameter, is_held in zip(self._parameters, self._is_held, strict=True):
            if not is_held:
                parameter.grad = None

    def _note_held(self) -> None:
        held = self._holders.shards_of(self._own)
        self._is_held = [shard in held for shard in self._shard_of]

    def _held_parameters(self) -> list[nn.Parameter]:
        held = zip(self._parameters, self._is_held, strict=True)
        return [parameter for parameter, is_held in held if is_held]

    # -- the loss of ranks ---------------------------------------------------------------------

    @contextmanager
    def _copies_in_place(self) -> Iterator[None]:
        """Have this rank update its copies in the block, in place of what all see."""
        for number, copy in self._copies.items():
            self._parameters[number].data = copy
        try:
            yield
        finally:
            for number in self._copies:
                self._parameters[number].data = self._views[number]

    def _sum_together(self, compute: Callable[[], Any]) -> Any:
        """Sum, once nobody sees what a rank that died while it updated has left half done."""
        return super()._sum_together(lambda: self._restore_and(compute))

    def _restore_and(self, compute: Callable[[], Any]) -> Any:
        world = self._place.world
        if world is not self._restored_in:
            self._restore(world.original_ranks)
            world.barrier("the restoring of parameters")
            self._restored_in = world
        for number, copy in self._copies.items():  # no owner has these sums yet
            copy.copy_(self._views[number])
        return compute()

    def _restore(self, living: Sequence[int]) -> None:
        """Put this rank's copies in place of what owners that died have left."""
        for number, copy in self._copies.items():
            if self._holders.owner(self._shard_of[number], living) == self._own:
                self._views[number].copy_(copy)

    def _share_updates(self) -> None:
        memory, living = self.group.together(self._share_shards)
        if memory is not None and memory is not self._memory:
            self._memory.copy_(memory)  # another rank had completed it before a loss
        if living != self._living:
            self._hold_among(living)

    def _share_shards(self) -> list[Any]:
        """Return the updated parameters, where each rank has memory of its own, and the ranks that
        have them."""
        living = self._place.world.original_ranks
        self._restore(living)
        owners = [living.index(rank) for rank in self._holders.owners(living)]
        self._place.share(self._shards, owners)
        return [None if self._place.is_shared else self._memory, living]

    def _hold_among(self, living: Sequence[int]) -> None:
        """Have as many ranks hold each shard as before others were lost. living: the same on all
        ranks, though more may have died since."""
        while (copy := self._holders.next_copy(living)) is not None:
            shard, rank = copy
            (states,) = self.group.together(lambda: [self._state_of(shard)])  # noqa: B023
            self._holders.add(shard, rank)
            if rank == self._own:
                self._take(shard, states)
        for number in list(self._copies):
            if self._holders.owner(self._shard_of[number], living) == self._own:
                del self._copies[number]
        self._living = living

    def _state_of(self, shard: int) -> list[dict[str, Any]]:
        """Return on every rank the state of a shard's parameters, from its owner."""
        world = self._place.world
        owner = self._holders.owner(shard, world.original_ranks)
        own = []
        if owner == self._own:
            own = [self.optimizer.state[self._parameters[n]] for n in self._numbers_of(shard)]
        return world.share(own, root=world.original_ranks.index(owner))

    def _take(self, shard: int, states: Sequence[dict[str, Any]]) -> None:
        """Hold a shard from now on."""
        for number, state in zip(self._numbers_of(shard), states, strict=True):
            self.optimizer.state[self._parameters[number]] = state
            if self._place.is_shared:
                self._copies[number] = self._views[number].clone()
        self._note_held()

    def _numbers_of(self, shard: int) -> list[int]:
        return [number for number, owner in enumerate(self._shard_of) if owner == shard]


def check_survivable(strategy: str, *, num_nodes: int) -> None:
    """Raises: UserError for what cannot go on when ranks die."""
    if strategy == "shared" and num_nodes > 1:
        raise UserError(
            'the strategy "shared" survives the death of ranks on a single node only, but there '
            f'are {num_nodes} nodes: use "zero" or "mpi"'
        )


def check_by_parameter(source: OptimizerSource, strategy: str) -> None:
    """Raises: UserError for an optimizer of which nothing says that it updates each parameter by
    itself, as those of PyTorch do."""
    if not isinstance(source, Optimizer):
        return
    own = type(source).__module__.startswith("torch.optim") or isinstance(source, (LARS, LAMB))
    if isinstance(source, LBFGS) or not own:
        raise UserError(
            f'strategy="{strategy}" divides the parameters among the ranks, and '
            f"{type(source).__name__} may update them jointly: use an optimizer of torch.optim, or "
            'use strategy="mpi"'
        )


def view_like(tensor: Tensor, memory: Tensor) -> Tensor:
    """Return a tensor in `memory`, (tensor.nbytes,) uint8, of the type, shape and order in memory
    of another, on which the bits of some operations depend."""
    like = torch.empty_like(tensor.detach(), device="meta")
    return memory.view(tensor.dtype).as_strided(like.shape, like.stride())
