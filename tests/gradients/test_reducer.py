"""Where gradients are summed, decided without MPI."""

from types import SimpleNamespace

import pytest

from phalanx.gradients.make_reducer import AllReduce

WORLD = {"size": 2, "local_size": 2, "on_one_node": True, "link": None}


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"size": 4, "on_one_node": False}, "the ranks are on several nodes (2 of 4 on this one)"),
        ({"size": 1, "local_size": 1}, "there is one rank"),
    ],
)
def test_ranks_that_cannot_share_memory_are_refused(facts: dict, reason: str) -> None:
    world = SimpleNamespace(**(WORLD | facts))
    with pytest.raises(ValueError, match="the shared all-reduce cannot be used") as caught:
        AllReduce(method="shared", overlap="off").make([], world)
    assert str(caught.value).endswith(f"{reason}; leave it out")
