"""Where gradients are summed, decided without MPI."""

from types import SimpleNamespace
from typing import Any

from phalanx.gradients.make_reducer import obstacle_to_sharing


def world(**facts: Any) -> Any:
    return SimpleNamespace(**{"size": 2, "local_size": 2, "on_one_node": True, **facts})


def test_ranks_of_one_node_share() -> None:
    assert obstacle_to_sharing(world()) is None


def test_ranks_of_several_nodes_do_not() -> None:
    obstacle = obstacle_to_sharing(world(size=4, on_one_node=False))
    assert obstacle == "the ranks are on several nodes (2 of 4 on this one)"


def test_one_rank_has_nobody_to_share_with() -> None:
    assert obstacle_to_sharing(world(size=1, local_size=1)) == "there is one rank"
