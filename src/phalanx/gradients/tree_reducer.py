"""Reduction of the gradients of micro-batches in an order that the ranks do not change."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phalanx.comm.layout import share_of
from phalanx.comm.wait import WaitPolicy
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.bucketed_reducer import (
    AFTER_BACKWARD,
    DURING_BACKWARD,
    largest_bytes_of,
)
from phalanx.gradients.buckets import LAST_BUCKET_DIVISOR, assign_buckets
from phalanx.gradients.comm_thread import CommTasks, times_of
from phalanx.gradients.division import Division
from phalanx.gradients.gradient_buckets import BucketOrder
from phalanx.gradients.reducer import GradReducer, ReduceTimes, SummedLoss, dense_gradient
from phalanx.gradients.summation_tree import Exchange, Subtree, SummationTree, schedule_exchange
from phalanx.gradients.tree_vector import (
    MessageTreeVector,
    SharedTreeVector,
    make_tree_vectors,
    message_vectors,
)
from phalanx.records.spans import now_ns
from phalanx.torch_backend.threads import stop_filling_memory

Together = Callable[[Callable[[], Any]], Any]
"""Calls a function that all ranks call, and returns what it returns, the same on each; again where
ranks were lost meanwhile (`RunGroup.together`)."""


class TreeReducer(GradReducer):
    """Reducer whose sums have the same bits on any number of ranks.

    The gradient of each micro-batch is computed by itself, from the same parameters and buffers,
    and they are summed in the order of a `SummationTree`, whichever rank has computed them. Each
    micro-batch of a step begins with the buffers of the step before. Those of floating point, such
    as running statistics, become the mean over the micro-batches; others, such as the number of
    updates, what one micro-batch makes of them. Half types are rounded after each addition.

    Cost: of a micro-batch an addition in place; a rank keeps at most log₂ of its micro-batches
    partial sums. Ranks that hold k of them give k slices to each peer and gather the sums: for
    ranks that share the micro-batches evenly as much as a reduce-scatter and an all-gather.
    """

    name = "tree"
    sums_losses = True

    def __init__(
        self,
        parameters: Sequence[Tensor],
        buffers: Sequence[Tensor],
        division: Division,
        world: World | None,
        *,
        owners: Sequence[int] | None = None,
        together: Together = lambda compute: compute(),
    ) -> None:
        """division: of a full global batch, which may change between two steps. world: None for
        one process. owners: of the parameters, the only rank that needs the sum; None: all need
        all. Collective."""
        super().__init__(parameters)
        self._division, self._owners, self._together = division, owners, together
        self._buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
        self._counters = [buffer for buffer in buffers if not buffer.is_floating_point()]
        losses = torch.zeros(3, dtype=torch.float64, device="cpu")
        likes = [losses, *parameters, *self._buffers]
        self._complex = [place for place, like in enumerate(likes) if like.is_complex()]
        self._likes = self._as_real(likes)
        self._exchange: Exchange | None = None
        self._leaves: frozenset[int] = frozenset()
        self._sums: dict[Subtree, list[Tensor]] = {}
        self._held: set[int] = set()
        self._before: list[tuple[Tensor, Tensor]] = []
        self._micro_batch, self._num_samples, self._of_samples = 0, 0, 1
        self._enter(world)

    def _enter(self, world: World | None) -> None:
        self._world = world if world is not None and world.size > 1 else None
        self._rank = 0 if world is None else world.rank
        self._original_rank = 0 if world is None else world.original_rank
        # Keeps the memory of other ranks alive as long as the last sums.
        self._vectors: Sequence[SharedTreeVector | MessageTreeVector] = ()
        self._num_windows = 0

    @property
    def is_divided(self) -> bool:
        return any(vector.is_divided for vector in self._vectors)

    def rejoin(self, world: World) -> None:
        self._enter(world)
        if self._exchange is not None:
            self._exchange = self._scheduled()

    def _scheduled(self) -> Exchange:
        division = self._division
        return schedule_exchange(tuple(division.owners), self._leaves, division.num_micro_batches)

    # -- micro-batches -----------------------------------------------------------------------

    def begin_step(self, leaves: Collection[int]) -> None:
        """Begin a global batch. leaves: its micro-batches that have samples."""
        self._clear()
        self._leaves = frozenset(leaves)
        self._exchange = self._scheduled()
        self._division.is_in_step = True

    def begin_micro_batch(self, number: int, samples: int, of_samples: int) -> None:
        if not self._division.is_in_step:
            whole = self._division.num_micro_batches
            self.begin_step([leaf for leaf in range(whole) if share_of(leaf, whole, of_samples)])
            self._before = [(b, b.clone()) for b in (*self._buffers, *self._counters)]
        else:
            for buffer, before in self._before:
                buffer.copy_(before)
        self._take_noted()
        self._micro_batch, self._num_samples, self._of_samples = number, samples, of_samples

    def end_micro_batch(self) -> None:
        noted = self._take_noted()
        if self._num_samples:
            share = self._num_samples / self._of_samples
            self.add(self._micro_batch, share, noted, self._buffers)
        else:  # padding, of a rank without samples
            self._clear_gradients()

    @torch.no_grad()
    def add(
        self, number: int, share: float, noted: Sequence[float], buffers: Sequence[Tensor]
    ) -> None:
        """Add what micro-batch `number` has made: gradients, which are cleared, losses, and buffers
        of floating point, which count by its `share` of the samples."""
        losses = torch.tensor(noted, dtype=torch.float64, device="cpu")
        gradients = [dense_gradient(parameter) for parameter in self._parameters]
        self._clear_gradients()
        scaled = torch._foreach_mul(list(buffers), share) if buffers else ()
        self._held.add(number)
        self._add(number, [losses, *gradients, *scaled])

    def _add(self, number: int, tensors: list[Tensor]) -> None:
        """Add the tensors, which are changed, to the partial sums of this rank."""
        assert self._exchange is not None, "begin_step() comes first"
        add_leaf(self._exchange.tree, self._sums, number, self._as_real(tensors))

    def _clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _clear(self) -> None:
        """Forget what was added, once its sums are known."""
        self._sums.clear()
        self._held.clear()
        self._leaves, self._exchange = frozenset(), None

    # -- sums --------------------------------------------------------------------------------

    def flush(self) -> None:
        began = time.perf_counter()
        self.end_micro_batch()
        self.reduce()
        is_alone = self._world is None or self.missing
        self.times = ReduceTimes(0.0 if is_alone else time.perf_counter() - began)

    def reduce(self) -> None:
        """Give parameters and buffers the sums of what was added in the step, and begin another;
        where ranks were lost, note what is `missing` yet. Collective.

        Raises: WaitTimeoutError and the like, naming the ranks that did not come.
        """
        try:
            losses, *sums = self._together(self._sum_all)
        except IncompleteError:
            return
        self._clear()
        self.missing = ()  # ends as if this rank had received the sums
        self._division.is_in_step, self.summed = False, SummedLoss(*losses.tolist())
        stop_filling_memory()
        number = len(self._parameters)
        self._give_gradients(sums[:number])
        if self._buffers:
            torch._foreach_copy_(self._buffers, sums[number:])

    def _sum_all(self) -> list[Tensor]:
        """Raises: IncompleteError while this rank has not computed all that it has to."""
        own = self._leaves.intersection(self._division.of(self._original_rank))
        self.missing = sorted(own - self._held)
        if self.missing:
            raise IncompleteError
        return self._as_complex(self._sum())

    @torch.no_grad()
    def _sum(self) -> list[Tensor]:
        """Return the sums over all micro-batches, which last until the next call. Ranks of one node
        read them from one place, where they must not be changed."""
        exchange = self._exchange
        assert exchange is not None, "begin_step() comes first"
        if self._world is None:
            (sums,) = self._sums.values()
            return sums
        if not self._vectors or exchange.num_terms > self._num_windows:
            self._close_vectors()
            self._num_windows = max(self._world.size, exchange.num_terms)
            own, others = self._owners, [None] * len(self._buffers)
            owners = None if own is None else [None, *own, *others]
            self._vectors = make_tree_vectors(self._world, self._likes, self._num_windows, owners)
        terms = [self._sums[node] for node in exchange.nodes[self._world.rank]]
        if len(self._vectors) == 1:  # one vector holds all places, in order
            return self._vectors[0].reduce(terms, exchange)
        found: dict[int, Tensor] = {}
        for vector in self._vectors:
            typed = [[tensors[place] for place in vector.places] for tensors in terms]
            found.update(zip(vector.places, vector.reduce(typed, exchange), strict=True))
        return in_order(found)

    def _give_gradients(self, sums: Sequence[Tensor]) -> None:
        """Give parameters their sums, in memory that neither other ranks nor later steps see, in
        the order in memory of the parameter."""
        is_divided, owners = self.is_divided, self._owners or [0] * len(sums)
        for parameter, total, owner in zip(self._parameters, sums, owners, strict=True):
            if is_divided and owner != self._rank:
                parameter.grad = parameter.new_zeros(()).expand(parameter.shape)
            elif self._world is None and parameter.is_contiguous():
                parameter.grad = total
            else:
                parameter.grad = torch.empty_like(parameter).copy_(total)

    def is_finite(self) -> bool:
        is_known = bool(self._vectors) and self._vectors[0].is_finite
        return is_known or super().is_finite()

    def close(self) -> None:
        """Drop the memory of the sums. Collective."""
        self._clear()
        self._close_vectors()

    def _close_vectors(self) -> None:
        for vector in self._vectors:
            vector.close()
        self._vectors = ()

    def _as_real(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """View complex tensors as real: PyTorch's sum of two complex ones multiplies by one, which
        changes signs of zeros and infinite parts, where other kernels add."""
        if not self._complex:
            return list(tensors)
        return [
            torch.view_as_real(each.detach().resolve_conj()) if each.is_complex() else each
            for each in tensors
        ]

    def _as_complex(self, tensors: list[Tensor]) -> list[Tensor]:
        viewed = list(tensors)
        for place in self._complex:
            viewed[place] = torch.view_as_complex(viewed[place])
        return viewed


class _Addition(NamedTuple):
    """Gradients of a bucket, of a rank's last micro-batch; None: it has no samples."""

    bucket: int
    tensors: list[Tensor] | None


class OverlappedTreeReducer(TreeReducer):
    """Reducer with the same bits, whose ranks sum the gradients of a bucket over messages as soon
    as all of them have been through it.

    Only the last addition of a rank can be hidden, and the exchange: buckets wait until the rank
    has computed its other micro-batches. No rank may be lost.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        buffers: Sequence[Tensor],
        division: Division,
        world: World,
    ) -> None:
        """Make a reducer as `TreeReducer` does. Collective."""
        super().__init__(parameters, buffers, division, world)
        policy = WaitPolicy.for_network()
        self._group = world.group.subgroup(range(world.size), name="gradients", policy=policy)
        largest = largest_bytes_of(world, sum(one.nbytes for one in parameters), overlaps=True)
        members = assign_buckets(
            [parameter.nbytes for parameter in parameters],
            [str(parameter.dtype) for parameter in parameters],
            range(len(parameters) - 1, -1, -1),  # a backward pass goes backwards
            largest,
            largest // LAST_BUCKET_DIVISOR,
        )
        self._members = [[parameters[number] for number in numbers] for numbers in members]
        places = [[1 + number for number in numbers] for numbers in members]
        # Hooks do not tell of losses and buffers.
        places.append([0, *range(1 + len(parameters), len(self._likes))])
        owners = [None] * len(self._likes)
        self._vectors = [
            vector
            for some in places
            for vector in message_vectors(some, self._likes, self._group, owners)
        ]
        self._order = BucketOrder(self._members)
        self._found: dict[int, Tensor] = {}
        """Sums by their place in the lists."""
        self._leaf: int | None = None  # the last of this rank
        self._is_open = False
        self._computed_ns, self._times = 0, ReduceTimes(0.0)
        self._thread = CommTasks(self._add_and_reduce, on_thread=True)
        self._hooks = [one.register_post_accumulate_grad_hook(self._mark) for one in parameters]

    def begin_step(self, leaves: Collection[int]) -> None:
        super().begin_step(leaves)
        self._order.begin()
        self._leaf = None

    def begin(self) -> None:
        self._leaf = self._micro_batch if self._num_samples else None
        self._is_open = self._leaf is not None
        self._group.set_wait_policy(DURING_BACKWARD)

    def flush(self) -> None:
        self._is_open = False
        self._computed_ns = now_ns()
        super().flush()
        self.times = self._times

    def fail(self, reason: str) -> None:
        self._is_open = False
        self._group.fail(reason)

    def _add(self, number: int, tensors: list[Tensor]) -> None:
        if number != self._leaf:
            super()._add(number, tensors)
            return
        for bucket in (*self._order.flush(), *range(len(self._members), len(self._vectors))):
            own = [tensors[place] for place in self._vectors[bucket].places]
            self._thread.submit(_Addition(bucket, own))

    def _sum(self) -> list[Tensor]:
        if self._leaf is None:
            for bucket in range(len(self._vectors)):
                self._thread.submit(_Addition(bucket, None))
        self._group.set_wait_policy(AFTER_BACKWARD)
        self._times = times_of(self._thread.wait(), self._computed_ns)
        return in_order(self._found)

    def close(self) -> None:
        """Drop the memory of the sums, and end the thread. Collective."""
        for hook in self._hooks:
            hook.remove()
        self._thread.close()
        self._found.clear()
        super().close()
        self._group.close()

    def _mark(self, parameter: Tensor) -> None:
        if self._is_open:
            for bucket in self._order.mark_ready(parameter):
                gradients = [dense_gradient(one) for one in self._members[bucket]]
                self._thread.submit(_Addition(bucket, gradients))

    def _add_and_reduce(self, addition: _Addition) -> None:
        exchange, vector = self._exchange, self._vectors[addition.bucket]
        assert exchange is not None, "begin() comes first"
        sums = {node: [some[place] for place in vector.places] for node, some in self._sums.items()}
        if addition.tensors is not None:
            assert self._leaf is not None, "of the last pass"
            add_leaf(exchange.tree, sums, self._leaf, self._as_real(addition.tensors))
        own = [sums[node] for node in exchange.nodes[self._group.rank]]
        self._found.update(zip(vector.places, vector.reduce(own, exchange), strict=True))


def add_leaf(
    tree: SummationTree, sums: dict[Subtree, list[Tensor]], leaf: int, tensors: list[Tensor]
) -> None:
    """Add the tensors of a leaf, which are changed, to the partial sums that a rank has."""
    node, root = tree.climb(Subtree(0, leaf)), tree.root
    while node != root and node.sibling in sums:
        other = sums.pop(node.sibling)
        torch._foreach_add_(other, tensors)  # either order gives the same bits
        tensors, node = other, tree.climb(node.parent)
    sums[node] = tensors


def in_order(found: Mapping[int, Tensor]) -> list[Tensor]:
    """Return the sums of all places."""
    return [found[place] for place in sorted(found)]


def check_batch_norm(model: nn.Module) -> None:
    """Raise UserError for statistics of batch norm that depend on the ranks."""
    if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        raise UserError(
            "the model has SyncBatchNorm, which sums statistics in an order that depends on the "
            "ranks: use BatchNorm in bitwise runs, with the statistics of each micro-batch"
        )


class IncompleteError(Exception):
    """Micro-batches of lost ranks are still to be computed."""
