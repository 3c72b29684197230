"""Words about hosts and their ranks; no rank is started."""

import socket

import pytest

from phalanx.comm.shared_folder import MAX_NAMED_HOSTS, RankOnHost, by_host, named_host
from phalanx.errors import UserError
from phalanx.jobs.detect import Launched


def test_ranks_are_listed_by_host() -> None:
    ranks = [RankOnHost(1, "n1"), RankOnHost(2, "n2"), RankOnHost(3, "n1")]
    assert by_host(ranks) == "n1 (ranks 1, 3), n2 (rank 2)"
    many = by_host(RankOnHost(rank, f"n{rank}") for rank in range(MAX_NAMED_HOSTS + 3))
    assert many.endswith(f"n{MAX_NAMED_HOSTS - 1} (rank {MAX_NAMED_HOSTS - 1}) and 3 more")


@pytest.mark.parametrize(
    ("words", "local_world_size", "is_named"),
    [
        ("there is no such folder", 1, True),
        ("there is no such folder", None, True),
        ("there is no such folder", 2, False),
        ("rank 0 (n0): there is no such folder", 1, False),
        ("n1 (ranks 1, 3) has no such folder", 1, False),
    ],
)
def test_errors_name_the_host_of_one_of_several_nodes(
    words: str, local_world_size: int | None, is_named: bool
) -> None:
    launched = Launched(launcher="hydra", rank=1, world_size=2, local_world_size=local_world_size)
    with pytest.raises(UserError) as raised, named_host(launched):
        raise UserError(words)
    assert str(raised.value) == words + f" (rank 1 on {socket.gethostname()})" * is_named
