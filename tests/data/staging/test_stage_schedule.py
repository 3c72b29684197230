"""Staging order: earliest need first, latest need evicted, never over the byte limit."""

from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.sampler import shard_windows
from phalanx.data.staging.stage_schedule import ReadSchedule, StageMove, next_move

windows_of_units = st.lists(
    st.lists(st.integers(0, 9), unique=True, max_size=4), min_size=1, max_size=6
)
ten_sizes = st.lists(st.integers(1, 5), min_size=10, max_size=10)


def settled(
    windows: list[list[int]], held: set[int], sizes: list[int], most: float | None
) -> set[int]:
    """Return the units held once no move is left."""
    held = set(held)
    for _ in range(100):
        move = next_move(windows, held, sizes, most)
        if move is None:
            return held
        assert set(move.evict) <= held and move.unit not in held
        held = held - set(move.evict) | {move.unit}
        assert most is None or sum(sizes[unit] for unit in held) <= most
    raise AssertionError("it never settles")


@given(
    windows=windows_of_units,
    sizes=ten_sizes,
    most=st.integers(0, 30),
    before=st.sets(st.integers(0, 9)),
)
def test_it_settles_within_its_room_with_what_is_needed_first(
    windows: list[list[int]], sizes: list[int], most: int, before: set[int]
) -> None:
    fitting: set[int] = set()
    for unit in sorted(before):
        if sum(sizes[u] for u in fitting | {unit}) <= most:
            fitting.add(unit)
    held = settled(windows, fitting, sizes, most)
    first = set(windows[0])
    if sum(sizes[unit] for unit in first) <= most:
        assert first <= held


@given(windows=windows_of_units, sizes=ten_sizes)
def test_without_a_limit_everything_comes(windows: list[list[int]], sizes: list[int]) -> None:
    assert settled(windows, set(), sizes, None) == {u for units in windows for u in units}


def test_the_unit_that_is_needed_last_goes_first() -> None:
    windows, sizes = [[0, 1], [2], [1], [3]], [1] * 6
    assert next_move(windows, {0, 1, 5, 3}, sizes, 4) == StageMove(2, [5])  # never needed again
    assert next_move(windows, {0, 1, 3}, sizes, 3) == StageMove(2, [3])
    assert next_move(windows, {0, 1, 2}, sizes, 3) is None  # 3 is needed after all of these
    assert next_move(windows, {0, 1}, [1, 1, 9, 1], 3) == StageMove(
        3, []
    )  # too large: the next one
    assert next_move(windows, {0, 1}, sizes, None, given_up={2}) == StageMove(3, [])


def test_what_is_ahead_begins_with_the_window_that_is_read() -> None:
    first = [0, 10, 20, 30, 40, 45]
    needs = ReadSchedule(first_samples=first, num_validation_shards=2, window=2, seed=3, epochs=2)
    one, two = (shard_windows(5, 2, 3, epoch) for epoch in range(2))
    sizes = [sum(first[s + 1] - first[s] for s in shards) for shards in one]
    assert needs.ahead(0, 0) == [*one, [5, 6], *two, [5, 6]]
    assert needs.ahead(0, sizes[0] - 1) == needs.ahead(0, 0)
    assert needs.ahead(0, sizes[0]) == [*one[1:], [5, 6], *two, [5, 6]]
    assert needs.ahead(0, 45) == [[5, 6], *two, [5, 6]]
    assert needs.ahead(1, sizes[0]) == [*two[1:], [5, 6]]  # there is no third epoch
    whole = ReadSchedule(
        first_samples=first, num_validation_shards=1, window=None, seed=3, epochs=1
    )
    assert whole.ahead(0, 7) == [[0, 1, 2, 3, 4], [5]]
