import itertools

from hypothesis import given
from hypothesis import strategies as st

from phalanx.comm.layout import chunks, share_of, starts_of

SIZES = st.lists(st.integers(0, 300), max_size=8)


@given(st.integers(0, 1000), st.integers(1, 17))
def test_shares_cover_the_vector_once_and_differ_by_at_most_one(count: int, size: int) -> None:
    shares = [share_of(rank, size, count) for rank in range(size)]
    assert [i for share in shares for i in share] == list(range(count))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1


@given(SIZES)
def test_parts_lie_one_after_the_other(sizes: list[int]) -> None:
    starts = starts_of(sizes)
    assert starts[0] == 0
    assert [b - a for a, b in itertools.pairwise(starts)] == sizes


@given(st.integers(0, 1000), st.integers(1, 300))
def test_chunks_cover_every_element_once(count: int, largest: int) -> None:
    slices = list(chunks(count, largest))
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(count))
    assert all(s.stop - s.start <= largest for s in slices)
