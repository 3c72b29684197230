"""Every sample once, shuffled within what is read together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.packing.run import split

chunk_sizes = st.lists(st.integers(0, 20), min_size=1, max_size=8)


def chunks_of(sizes: list[int]) -> list[range]:
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@given(chunk_sizes, st.integers(0, 2**40), st.floats(0, 0.99))
def test_every_sample_once(sizes: list[int], seed: int, share: float) -> None:
    parts = split(chunks_of(sizes), seed=seed, share=share)
    num_samples = sum(sizes)
    assert sorted(np.concatenate(parts).tolist()) == list(range(num_samples))
    if share > 0 and num_samples > 1:
        assert len(parts.validation) == min(max(1, round(share * num_samples)), num_samples - 1)
    else:
        assert len(parts.validation) == 0


@given(chunk_sizes, st.integers(0, 99), st.floats(0, 0.99))
def test_a_chunk_is_read_once(sizes: list[int], seed: int, share: float) -> None:
    chunks = chunks_of(sizes)
    for part in split(chunks, seed=seed, share=share):
        chunk_of = np.searchsorted([chunk.stop for chunk in chunks], part, side="right")
        assert np.count_nonzero(np.diff(chunk_of)) + 1 <= max(1, len(set(chunk_of.tolist())))


def test_the_seed_decides_alone() -> None:
    def order(seed: int) -> list[int]:
        return split([range(100)], seed=seed, share=0.2).train.tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_what_the_data_sets_aside() -> None:
    parts = split([range(10)], seed=0, share=0.5, validation=np.array([8, 9]))
    assert sorted(parts.validation.tolist()) == [8, 9]
    assert len(parts.train) == 8
