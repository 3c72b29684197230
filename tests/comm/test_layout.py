import itertools

from hypothesis import given
from hypothesis import strategies as st

from phalanx.comm.layout import chunks, flat_slices, share_of, starts_of

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


@given(SIZES, st.integers(1, 5), st.integers(1, 100))
def test_pieces_of_all_shares_are_every_element_once(
    sizes: list[int], ranks: int, largest: int
) -> None:
    vector = [(part, i) for part, size in enumerate(sizes) for i in range(size)]
    found = []
    for rank in range(ranks):
        share = share_of(rank, ranks, len(vector))
        for piece in flat_slices(sizes, share, largest):
            assert 0 < piece.end - piece.begin <= largest
            assert share.start <= piece.offset < piece.stop <= share.stop
            elements = [(piece.part, i) for i in range(piece.begin, piece.end)]
            assert vector[piece.offset : piece.stop] == elements
            found += elements
    assert found == vector


@given(st.integers(0, 1000), st.integers(1, 300))
def test_chunks_cover_every_element_once(count: int, largest: int) -> None:
    slices = list(chunks(count, largest))
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(count))
    assert all(s.stop - s.start <= largest for s in slices)
