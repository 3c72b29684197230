import itertools

from hypothesis import given
from hypothesis import strategies as st

from phalanx.parallel.buckets import buckets, offsets


@given(st.lists(st.integers(0, 10_000)))
def test_parts_lie_one_after_the_other(sizes: list[int]) -> None:
    starts = offsets(sizes)
    assert starts[0] == 0
    assert [b - a for a, b in itertools.pairwise(starts)] == sizes


@given(st.integers(0, 10_000), st.sampled_from([2, 4, 8]), st.integers(1, 5_000))
def test_buckets_cover_every_element_once(count: int, itemsize: int, bucket_bytes: int) -> None:
    ranges = buckets(count, itemsize, bucket_bytes)
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(count))
    assert all((stop - start) * itemsize <= max(bucket_bytes, itemsize) for start, stop in ranges)
