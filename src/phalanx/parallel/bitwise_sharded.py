"""Bitwise data parallelism whose optimizer state is divided among ranks.

Each parameter has an owner, the one rank that keeps its state and updates it, by the optimizer of a
single process: the bits of an update depend on a parameter, its gradient and its state alone,
however many ranks own the others. Optimizers that update parameters jointly are refused.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.faults import is_fault_tolerant
from phalanx.comm.layout import CACHE_LINE_BYTES, by_owner
from phalanx.comm.memory import allocate_shared
from phalanx.comm.set_up import SetupCommunicator
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.flat_grad_buffer import node_members
from phalanx.gradients.norms import (
    NonFiniteGradients,
    are_finite,
    describe_nonfinite_sums,
    find_nonfinite,
    square_of,
)
from phalanx.gradients.optimizer_update import STATE_NAMES
from phalanx.parallel.bitwise import Bitwise
from phalanx.parallel.costs import assign_owners
from phalanx.parallel.optimizer import OptimizerSource
from phalanx.parallel.step import Batch, StateBytes, StepOptions
from phalanx.records.events import ExpectedCosts
from phalanx.torch_backend.tensors import buffer_of


class ParameterMemory(ABC):
    """Memory of the parameters, the owners of which are some ranks; each updates its own there."""

    name: str
    """Of the strategy."""
    num_owners: int
    number: int
    """Of this rank, among the owners."""
    are_owners_alone = False
    """Whether no rank but the owner needs a parameter's gradient."""
    formula: str
    """Of the bytes of parameters that a rank holds, after those of a value; Ψ: their number."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def num_holders(self) -> int:
        """Number of ranks that hold one copy of the parameters together."""
        return 1

    @abstractmethod
    def allocate(self, num_bytes: int) -> Tensor:
        """Return the memory, (num_bytes,) uint8, zeros. Collective."""

    @abstractmethod
    def share(self, parts: Sequence[Tensor]) -> None:
        """Bring every rank what others have updated. parts: of the owners. Collective."""


class OwnMemory(ParameterMemory):
    """Memory of each rank's own: all ranks are owners, and send each other what they have
    updated."""

    name = "zero"
    are_owners_alone = True
    formula = "Ψ"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.number, self.num_owners = world.rank, world.size

    def allocate(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def share(self, parts: Sequence[Tensor]) -> None:
        if self._world.size > 1:
            outputs = list(map(buffer_of, parts))
            self._world.group.all_gather(outputs, outputs[self.number])


class NodeMemory(ParameterMemory):
    """Memory that the ranks of a node share, who are the owners; every node makes the same
    updates."""

    name = "shared"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.number, self.num_owners = world.local_rank, world.local_size
        self.formula = f"Ψ/{'p' if world.on_one_node else 'k'}"

    @property
    def num_holders(self) -> int:
        return self.num_owners

    def allocate(self, num_bytes: int) -> Tensor:
        """Raises: UserError where there is no such memory."""
        world = self._world
        detector = FailureDetector(
            world.node,
            group="parameters",
            members=node_members(world),
            policy=world.policy,
            timeout_s=world.timeout_s,
        )
        memory = allocate_shared(SetupCommunicator(world.node, detector), num_bytes)
        detector.close()
        without = np.array([float(memory is None)])
        world.all_reduce(without)
        if memory is None or any(without):
            raise UserError(
                "--strategy shared needs shared memory, and these ranks have none: use "
                "--strategy mpi (`phalanx doctor` says more)"
            )
        return torch.from_numpy(memory.array())

    def share(self, parts: Sequence[Tensor]) -> None:  # noqa: ARG002
        self._world.barrier("the update")


class BitwiseSharded(Bitwise):
    """Replicas of which each updates the parameters that it owns, and gets the others from their
    owners. Parameters lie in one vector, those of an owner side by side.

    As `zero` (stages 1 and 2) all ranks are owners, and over messages the sums of gradients come to
    their owners alone; as `shared` there are owners and memory on each node.
    """

    is_sharded = True

    def __init__(
        self,
        world: World,
        kind: type[ParameterMemory],
        *,
        micro_batches: int,
        step_options: StepOptions | None = None,
    ) -> None:
        """micro_batches: of a full global batch. Raises: UserError where ranks may be lost."""
        if is_fault_tolerant():
            raise UserError(without_owner(kind.name))
        super().__init__(world, micro_batches=micro_batches, step_options=step_options)
        self.name = kind.name
        self._place = kind(world)
        self._world = world
        self._shared_s = 0.0

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        """Raises: UserError for an optimizer that may update parameters jointly."""
        check_by_parameter(rule, self.name)
        super().prepare(model, rule)
        own, number = self._place.number, self._place.num_owners
        sizes = [parameter.nbytes for parameter in self._parameters]
        owners = assign_owners(sizes, number)
        self._is_own = [owner == own for owner in owners]
        starts, parts = by_owner(sizes, owners, number, CACHE_LINE_BYTES)
        memory = self._place.allocate(parts[-1].stop)
        self._parts = [memory[part.start : part.stop] for part in parts]
        views = [
            view_like(parameter, memory[start : start + parameter.nbytes])
            for start, parameter in zip(starts, self._parameters, strict=True)
        ]
        for view, parameter in zip(views, self._parameters, strict=True):
            view.copy_(parameter.detach())  # the same by each rank that sees the memory
        self._world.barrier("the sharing of parameters")
        for view, parameter, is_own in zip(views, self._parameters, self._is_own, strict=True):
            parameter.data = view
            if not is_own:
                self.optimizer.state.pop(parameter, None)

    def update(self) -> bool:
        self._keep_own_gradients()
        is_updated = super().update()
        began = time.perf_counter()
        self._share_updates()
        self._shared_s = time.perf_counter() - began
        return is_updated

    def exchange(self, batch: Batch, computed_at: float, *, is_updated: bool) -> float:  # noqa: ARG002
        return self._shared_s if is_updated else 0.0

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Return the state of the parameters that this rank owns."""
        own = zip(self._names, self._parameters, self._is_own, strict=True)
        return {name: self.optimizer.state[parameter] for name, parameter, is_own in own if is_own}

    def gradients_are_finite(self) -> bool:
        if not self._reducer.is_divided:
            return super().gradients_are_finite()
        gradients = [p.grad for p in self._own_parameters() if p.grad is not None]
        return not self.group.sum([not are_finite(gradients)])[0]

    def gradient_square(self) -> float:
        """Add the squares in the order of the parameters, as one process does."""
        if not self._reducer.is_divided:
            return super().gradient_square()
        owned = zip(self._parameters, self._is_own, strict=True)
        own = [square_of(p.grad) if is_own and p.grad is not None else 0.0 for p, is_own in owned]
        return sum(self.group.sum(own))

    def describe_nonfinite_sums(self, batch: Batch, loss: float) -> str:
        if not self._reducer.is_divided:
            return super().describe_nonfinite_sums(batch, loss)
        found = find_nonfinite([parameter.grad for parameter in self._parameters], loss)
        rows = self.group.gather(found)
        if rows is None:
            return self.group.share("")
        last, number = max(int(row[0]) for row in rows), sum(int(row[1]) for row in rows)
        losses = [row[2] for row in rows]
        summed = NonFiniteGradients(last, number, 0.0)
        return self.group.share(describe_nonfinite_sums(batch.step, losses, summed, self._names))

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        size = self._parameters[0].element_size()
        whole = sum(parameter.nbytes for parameter in self._parameters)
        own = sum(parameter.nbytes for parameter in self._own_parameters())
        quantities = len(STATE_NAMES[self._rule.kind])
        return ExpectedCosts(
            sent_bytes=None,
            received_bytes=None,
            traffic_formula=None,
            state_bytes=whole + whole / self._place.num_holders + quantities * own,
            state_formula=f"{size}Ψ + {size}{self._place.formula} + {quantities * size}Ψ_own",
        )

    def state_bytes(self) -> StateBytes:
        """Return the rank's part of the parameters in its memory, its gradients and state."""
        whole = super().state_bytes()
        return whole._replace(parameters=whole.parameters // self._place.num_holders)

    def close(self) -> None:
        if self._tree_reducer is not None:
            for parameter in self._parameters:  # which may lie in memory that others see
                parameter.data = parameter.data.clone()
            self._parts.clear()
        super().close()

    def _owners_of_gradients(self) -> Sequence[int] | None:
        if not self._place.are_owners_alone:
            return None
        return assign_owners([parameter.nbytes for parameter in self._parameters], self.size)

    def _take_gradients(self, sums: Sequence[Tensor]) -> None:
        if not self._reducer.is_divided:
            super()._take_gradients(sums)
            return
        for parameter, total, is_own in zip(self._parameters, sums, self._is_own, strict=True):
            # Of others zeros without memory, until they are dropped.
            parameter.grad = total if is_own else parameter.new_zeros(()).expand(parameter.shape)

    def _scale_gradients(self, factor: float) -> None:
        self._keep_own_gradients()
        if any(self._is_own):  # there may be more ranks than parameters
            super()._scale_gradients(factor)

    def _keep_own_gradients(self) -> None:
        """Drop the others', once they are checked: an optimizer passes such parameters over."""
        for parameter, is_own in zip(self._parameters, self._is_own, strict=True):
            if not is_own:
                parameter.grad = None

    def _share_updates(self) -> None:
        self._place.share(self._parts)

    def _own_parameters(self) -> list[nn.Parameter]:
        owned = zip(self._parameters, self._is_own, strict=True)
        return [parameter for parameter, is_own in owned if is_own]


def without_owner(strategy: str) -> str:
    """Return why the run cannot go on without a rank that dies."""
    return (
        f'strategy="{strategy}" keeps the optimizer\'s state of a parameter on one rank, with '
        'which it would be lost, so that it cannot --survive: take strategy="mpi"'
    )


def check_by_parameter(source: OptimizerSource, strategy: str) -> None:
    """Raises: UserError for an optimizer of which nothing says that it updates each parameter by
    itself, as those of PyTorch do."""
    if not isinstance(source, Optimizer):
        return
    if isinstance(source, LBFGS) or not type(source).__module__.startswith("torch.optim"):
        raise UserError(
            f'strategy="{strategy}" divides the parameters among the ranks, and '
            f"{type(source).__name__} may update them jointly: give an optimizer of torch.optim, "
            'or take strategy="mpi"'
        )


def view_like(tensor: Tensor, memory: Tensor) -> Tensor:
    """Return a tensor in `memory`, (tensor.nbytes,) uint8, of the type, shape and order in memory
    of another, on which the bits of some operations depend."""
    like = torch.empty_like(tensor.detach(), device="meta")
    return memory.view(tensor.dtype).as_strided(like.shape, like.stride())
