"""Labels by which errors name ranks: on one host as on several."""

from phalanx.comm.rank_labels import RankLabels, hosts_to_name

WORLD = RankLabels(members=(0, 1, 2, 3), hosts=("n0", "n0", "n1", "n1"))


def test_on_one_host_a_rank_is_a_number() -> None:
    labels = RankLabels(members=(0, 1, 2, 3))
    assert [labels.short(2), labels.full(2), labels.of_world_rank(2)] == ["2", "2", "2"]
    subset = labels.subset([1, 3])
    assert [subset.short(1), subset.full(1), subset.of_world_rank(3)] == ["1", "1 (world 3)", "3"]


def test_on_several_hosts_the_host_is_named() -> None:
    assert [WORLD.short(2), WORLD.full(2), WORLD.of_world_rank(2)] == ["2 (n1)"] * 3
    subset = WORLD.subset([2, 1])
    assert subset.members == (2, 1)
    assert [subset.short(0), subset.full(0)] == ["0 (n1)", "0 (world 2, n1)"]
    assert [subset.full(1), subset.of_world_rank(1)] == ["1 (n0)", "1 (n0)"]


def test_hosts_are_named_only_where_they_differ() -> None:
    assert hosts_to_name(["n0", "n0"]) == ()
    assert hosts_to_name(["n0", "n1", "n0"]) == ("n0", "n1", "n0")


def test_a_world_that_has_lost_ranks_goes_by_the_numbers_they_started_with() -> None:
    labels = RankLabels(members=(0, 1, 2), original_ranks=(1, 2, 4))
    assert [labels.short(2), labels.full(2), labels.of_world_rank(2)] == ["4", "4", "4"]
    subset = labels.subset([0, 2])
    assert [subset.short(1), subset.full(1), subset.of_world_rank(2)] == ["1", "1 (world 4)", "4"]
    assert [subset.short(0), subset.full(0)] == ["0", "0 (world 1)"]
