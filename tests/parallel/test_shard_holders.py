"""Each shard of the optimizer's state is held by two ranks, and found through deaths."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import RunFailedError
from phalanx.jobs.outcome import is_about_loss
from phalanx.parallel.shard_holders import ShardHolders


def holders_of(holders: ShardHolders, ranks: range) -> list[list[int]]:
    return [
        [rank for rank in ranks if shard in holders.shards_of(rank)]
        for shard in range(holders.num_shards)
    ]


def test_ranks_of_a_node_hold_each_others_shards_in_pairs() -> None:
    holders = ShardHolders(dict.fromkeys(range(4), 0), num_copies=2)
    assert holders_of(holders, range(4)) == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert holders.owners(range(4)) == [0, 1, 2, 3]


def test_the_other_holder_is_on_another_node() -> None:
    holders = ShardHolders({0: 0, 1: 0, 2: 1, 3: 1}, num_copies=2)
    assert holders_of(holders, range(4)) == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert holders.owners([2, 3]) == [2, 3, 2, 3], "a node is lost"


def test_one_holder_where_nobody_may_be_lost() -> None:
    holders = ShardHolders(dict.fromkeys(range(3), 0), num_copies=1)
    assert holders_of(holders, range(3)) == [[0], [1], [2]]
    assert holders.next_copy(range(3)) is None


def test_what_all_its_holders_had_is_lost() -> None:
    holders = ShardHolders(dict.fromkeys(range(4), 0), num_copies=2)
    with pytest.raises(RunFailedError, match=r"is lost: ranks 0, 1, .*--restarts N") as why:
        holders.check([2, 3])
    assert is_about_loss(str(why.value)), "a restart follows"
    assert holders.next_copy([2, 3]) is None


@given(st.data(), st.integers(2, 9), st.integers(1, 4))
def test_shards_survive_deaths_one_by_one(data: st.DataObject, ranks: int, nodes: int) -> None:
    node_of = {rank: rank * nodes // ranks for rank in range(ranks)}
    holders, living = ShardHolders(node_of, num_copies=2), list(range(ranks))
    while len(living) > 1:
        living.remove(data.draw(st.sampled_from(living)))
        owners = holders.owners(living)
        copies = Counter[int]()
        while (copy := holders.next_copy(living)) is not None:
            shard, rank = copy
            assert rank in living and rank != owners[shard]
            holders.add(shard, rank)
            copies[shard] += 1
        assert max(copies.values(), default=0) <= 1
        assert holders.owners(living) == owners, "a copy does not change the owner"
        alive = [
            [rank for rank in living if shard in holders.shards_of(rank)] for shard in range(ranks)
        ]
        assert all(len(own) == min(2, len(living)) for own in alive)
