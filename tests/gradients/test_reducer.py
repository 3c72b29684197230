"""Where gradients are summed, decided without MPI."""

from types import SimpleNamespace
from typing import Any

from phalanx.gradients.reducer import obstacle_to_sharing, obstacle_to_window


def world(**facts: Any) -> Any:
    return SimpleNamespace(**{"size": 2, "local_size": 2, "on_one_node": True, **facts})


def test_ranks_of_one_node_share() -> None:
    assert obstacle_to_sharing(world()) is None


def test_ranks_of_several_nodes_do_not() -> None:
    obstacle = obstacle_to_sharing(world(size=4, on_one_node=False))
    assert obstacle == "the ranks are on several nodes (2 of 4 on this one)"


def test_one_rank_has_nobody_to_share_with() -> None:
    assert obstacle_to_sharing(world(size=1, local_size=1)) == "there is one rank"


def test_too_small_a_shared_memory_is_noticed() -> None:
    obstacle = obstacle_to_window(10**18, folder="/dev/shm")
    assert obstacle is not None
    assert obstacle.startswith(f"it needs {10**18} bytes of /dev/shm, where ")


def test_a_system_without_the_folder_is_trusted() -> None:
    assert obstacle_to_window(10**18, folder="/nowhere") is None
