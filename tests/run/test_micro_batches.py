"""The cut of a global batch depends on its options, never on the number of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import UserError
from phalanx.run.micro_batches import MicroBatchSlice, micro_batches_of_rank
from phalanx.run.strategy_options import check_micro_batches


@given(num_samples=st.integers(1, 40), number=st.integers(1, 12), num_ranks=st.integers(1, 12))
def test_every_sample_is_in_one_micro_batch_whoever_computes_it(
    num_samples: int, number: int, num_ranks: int
) -> None:
    def pieces(num_ranks: int) -> list[MicroBatchSlice]:
        ranks = [
            micro_batches_of_rank(num_samples, number=number, rank=rank, num_ranks=num_ranks)
            for rank in range(num_ranks)
        ]
        assert all(ranks), "each rank takes part in every step"
        return [piece for rank in ranks for piece in rank if not piece.is_padding]

    alone = pieces(1)
    assert pieces(num_ranks) == alone
    samples = [index for piece in alone for index in range(piece.start, piece.stop)]
    assert samples == list(range(num_samples))
    sizes = {piece.stop - piece.start for piece in alone}
    assert max(sizes) - min(sizes) <= 1
    place = {"number": number, "num_ranks": num_ranks}
    numbers = {
        len(micro_batches_of_rank(num_samples, rank=rank, evenly=True, **place))
        for rank in range(num_ranks)
    }
    assert len(numbers) == 1, "ranks whose forward passes need each other make as many"


@pytest.mark.parametrize(
    ("number", "batch_size", "num_ranks", "text"),
    [
        (
            3,
            16,
            4,
            "micro_batches=3 is out of range: with 4 ranks and batch_size=16 it must be 4 to",
        ),
        (20, 16, 4, "must be 4 to 16"),
        (
            None,
            3,
            4,
            "batch_size=3 is the global batch size, but there are 4 ranks: give at least 4",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    number: int | None, batch_size: int, num_ranks: int, text: str
) -> None:
    with pytest.raises(UserError, match=text):
        check_micro_batches(number, batch_size=batch_size, num_ranks=num_ranks)


def test_one_a_rank_where_none_was_asked_for() -> None:
    assert check_micro_batches(None, batch_size=16, num_ranks=3) == 3
