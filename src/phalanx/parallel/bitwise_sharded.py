"""Bitwise data parallelism whose optimizer state is divided among ranks.

Each parameter has an owner, the one rank that keeps its state and updates it, by the optimizer of a
single process: the bits of an update depend on a parameter, its gradient and its state alone,
however many ranks own the others. Optimizers that update parameters jointly are refused.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

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
from phalanx.records.schema import ExpectedCosts
from phalanx.torch_backend.tensors import buffer_of


class OwnedUpdates(Bitwise):
    """Replicas of which each updates the parameters that it owns, and gets the others from their
    owners. Parameters lie in one vector, those of an owner side by side."""

    is_sharded = True

    def __init__(
        self, world: World, *, micro_batches: int, step_options: StepOptions | None = None
    ) -> None:
        """micro_batches: of a full global batch. Raises: UserError where ranks may be lost."""
        if is_fault_tolerant():
            raise UserError(without_owner(self.name))
        super().__init__(world, micro_batches=micro_batches, step_options=step_options)
        self._world = world
        self._shared_s = 0.0

    @property
    @abstractmethod
    def _place(self) -> tuple[int, int]:
        """Number of this rank among the owners, and how many these are."""

    @abstractmethod
    def _allocate(self, num_bytes: int) -> Tensor:
        """Return the memory of the parameters, (num_bytes,) uint8. Collective."""

    @abstractmethod
    def _share_updates(self) -> None:
        """Bring every rank the parameters that others have updated. Collective."""

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        """Raises: UserError for an optimizer that may update parameters jointly."""
        check_by_parameter(rule, self.name)
        super().prepare(model, rule)
        own, number = self._place
        sizes = [parameter.nbytes for parameter in self._parameters]
        owners = assign_owners(sizes, number)
        self._is_own = [owner == own for owner in owners]
        starts, self._parts = by_owner(sizes, owners, number, CACHE_LINE_BYTES)
        self._memory = self._allocate(self._parts[-1].stop)
        views = [
            view_like(parameter, self._memory[start : start + parameter.nbytes])
            for start, parameter in zip(starts, self._parameters, strict=True)
        ]
        for view, parameter in zip(views, self._parameters, strict=True):
            view.copy_(parameter.detach())  # the same by each rank that sees the memory
        self._world.barrier("the sharing of parameters")
        for view, parameter, is_own in zip(views, self._parameters, self._is_own, strict=True):
            parameter.data = view
            if not is_own:
                self.optimizer.state.pop(parameter, None)

    def _scale_gradients(self, factor: float) -> None:
        self._keep_own_gradients()
        if any(self._is_own):  # there may be more ranks than parameters
            super()._scale_gradients(factor)

    def update(self) -> bool:
        self._keep_own_gradients()
        is_updated = super().update()
        began = time.perf_counter()
        self._share_updates()
        self._shared_s = time.perf_counter() - began
        return is_updated

    def exchange(self, batch: Batch, computed_at: float, *, is_updated: bool) -> float:  # noqa: ARG002
        return self._shared_s if is_updated else 0.0

    def _keep_own_gradients(self) -> None:
        """Drop the others', once they are checked: an optimizer passes such parameters over."""
        for parameter, is_own in zip(self._parameters, self._is_own, strict=True):
            if not is_own:
                parameter.grad = None

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Return the state of the parameters that this rank owns."""
        own = zip(self._names, self._parameters, self._is_own, strict=True)
        return {name: self.optimizer.state[parameter] for name, parameter, is_own in own if is_own}

    def _expected(self, parameters: str, num_holders: int) -> ExpectedCosts:
        """Return the costs of state. parameters: formula of a rank's part of them, of one copy for
        `num_holders` ranks."""
        size = self._parameters[0].element_size()
        whole = sum(parameter.nbytes for parameter in self._parameters)
        owned = zip(self._parameters, self._is_own, strict=True)
        own = sum(parameter.nbytes for parameter, is_own in owned if is_own)
        quantities = len(STATE_NAMES[self._rule.kind])
        return ExpectedCosts(
            sent_bytes=None,
            received_bytes=None,
            traffic_formula=None,
            state_bytes=whole + whole / num_holders + quantities * own,
            state_formula=f"{size}Ψ + {parameters} + {quantities * size}Ψ_own",
        )


class BitwiseZero(OwnedUpdates):
    """ZeRO stages 1 and 2: all ranks divide the parameters among themselves, and send each other
    what they have updated. Over messages the sums of gradients come to their owners alone; on one
    node they exist once."""

    name = "zero"

    @property
    def _place(self) -> tuple[int, int]:
        return self.rank, self.size

    def _allocate(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def _share_updates(self) -> None:
        if self.size > 1:
            pieces = [self._memory[part.start : part.stop] for part in self._parts]
            outputs = list(map(buffer_of, pieces))
            self._world.group.all_gather(outputs, outputs[self.rank])

    def _owners_of_gradients(self) -> Sequence[int]:
        return assign_owners([parameter.nbytes for parameter in self._parameters], self.size)

    def _take_gradients(self, sums: Sequence[Tensor]) -> None:
        if not self._reducer.is_divided:
            super()._take_gradients(sums)
            return
        for parameter, total, is_own in zip(self._parameters, sums, self._is_own, strict=True):
            # Of others zeros without memory, until they are dropped.
            parameter.grad = total if is_own else parameter.new_zeros(()).expand(parameter.shape)

    def gradients_are_finite(self) -> bool:
        if not self._reducer.is_divided:
            return super().gradients_are_finite()
        owned = zip(self._parameters, self._is_own, strict=True)
        gradients = [p.grad for p, is_own in owned if is_own and p.grad is not None]
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
        return self._expected(f"{self._parameters[0].element_size()}Ψ", 1)


class BitwiseShared(OwnedUpdates):
    """Parameters and optimizer state once a node: its ranks divide the parameters among themselves,
    and update them where all of them see it. Every node makes the same updates."""

    name = "shared"

    @property
    def _place(self) -> tuple[int, int]:
        return self._world.local_rank, self._world.local_size

    def _allocate(self, num_bytes: int) -> Tensor:
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
        without = self.group.sum([float(memory is None)])
        if memory is None or any(without):
            raise UserError(
                "--strategy shared needs shared memory, and these ranks have none: use "
                "--strategy mpi (`phalanx doctor` says more)"
            )
        return torch.from_numpy(memory.array())

    def _share_updates(self) -> None:
        self._world.barrier("the update")

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        size, number = self._parameters[0].element_size(), self._world.local_size
        return self._expected(f"{size}Ψ/{'p' if self._world.on_one_node else 'k'}", number)

    def state_bytes(self) -> StateBytes:
        """Return the rank's part of the node's parameters, its gradients and state."""
        whole = super().state_bytes()
        return whole._replace(parameters=whole.parameters // self._world.local_size)

    def close(self) -> None:
        if self._tree_reducer is not None:
            for parameter in self._parameters:
                parameter.data = parameter.data.clone()
            del self._memory
        super().close()


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
