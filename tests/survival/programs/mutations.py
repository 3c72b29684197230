"""Mutations of the engine that a test of survival must notice."""

from collections.abc import Callable
from typing import Any

from phalanx.comm.layout import share_of
from phalanx.gradients import tree_reducer
from phalanx.gradients.summation_tree import ADD, Exchange, schedule_exchange
from phalanx.gradients.tree_reducer import TreeReducer
from phalanx.parallel.sharded_state import ShardedState
from phalanx.parallel.surviving_group import SurvivingGroup


def count_inherited(times: int) -> None:
    """Count the micro-batches that a rank computes for lost ones so many times."""
    end = TreeReducer.end_micro_batch

    def mutation(reducer: TreeReducer) -> None:
        own = share_of(reducer._original_rank, 4, reducer._division.num_micro_batches)
        if reducer._micro_batch not in own:
            for parameter in reducer._parameters:
                parameter.grad.mul_(times)
        end(reducer)

    TreeReducer.end_micro_batch = mutation


def sum_by_ranks() -> None:
    """Add up the partial sums from the first rank to the last."""

    def mutation(*arguments: Any) -> Exchange:
        exchange = schedule_exchange(*arguments)
        rest = [item for term in range(1, exchange.num_terms) for item in (term, ADD)]
        return exchange._replace(expression=(0, *rest))

    tree_reducer.schedule_exchange = mutation


def make_calls_again() -> None:
    """Have ranks that have completed a call make it again, with those that have not."""
    SurvivingGroup._settle = lambda _, compute: compute()


def leave_half_done() -> None:
    """Leave in shared memory what a rank that died while it updated has made of it."""
    ShardedState._restore = lambda *_: None


def update_own_alone() -> None:
    """Have the second holders of a shard not make its updates."""
    keep = ShardedState._keep_held_gradients

    def mutation(strategy: ShardedState) -> None:
        keep(strategy)
        owners = strategy._holders.owners(strategy._place.world.original_ranks)
        for parameter, shard in zip(strategy._parameters, strategy._shard_of, strict=True):
            if owners[shard] != strategy._own:
                parameter.grad = None

    ShardedState._keep_held_gradients = mutation


MUTATIONS: dict[str, Callable[[], None]] = {
    "counted twice": lambda: count_inherited(2),
    "dropped": lambda: count_inherited(0),
    "order of the ranks": sum_by_ranks,
    "made again": make_calls_again,
    "left half done": leave_half_done,
    "updated by the owner alone": update_own_alone,
}
