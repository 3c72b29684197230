"""Data in memory as a source: cut as packed data is."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.datasets.dataset import Dataset
from phalanx.data.sources.in_memory import InMemorySource
from phalanx.data.sources.source import IGNORED, evaluation_slices


def source(samples: int = 23, validation: int = 11) -> InMemorySource:
    numbers = torch.arange(samples, dtype=torch.float32)
    images = numbers[:, None, None, None].expand(samples, 1, 2, 2)
    return InMemorySource(
        Dataset(
            name="digits",
            train_inputs=images,
            train_targets=torch.arange(samples),
            validation_inputs=images[:validation],
            validation_targets=torch.arange(validation),
            reason="made here",
        )
    )


@given(
    num_samples=st.integers(1, 60), num_ranks=st.integers(1, 9), batch_size=st.integers(1, 20)
)  # fmt: skip
def test_all_is_evaluated_once_in_as_many_pieces_on_every_rank(
    num_samples: int, num_ranks: int, batch_size: int
) -> None:
    parts = [
        list(evaluation_slices(num_samples, rank, num_ranks, batch_size))
        for rank in range(num_ranks)
    ]
    assert len({len(pieces) for pieces in parts}) == 1
    seen = [s for pieces in parts for piece in pieces for s in range(piece.start, piece.stop)]
    assert seen == list(range(num_samples))


def test_an_epoch_goes_on_where_it_was_left() -> None:
    def numbers(ranks: int, first_sample: int) -> list[int]:
        columns = [
            source().train_batches(
                seed=1,
                epoch=2,
                global_batch_size=5,
                rank=rank,
                num_ranks=ranks,
                first_sample=first_sample,
            )
            for rank in range(ranks)
        ]
        return [
            int(target)
            for parts in zip(*columns, strict=True)
            for part in parts
            for target in part.targets[: part.num_samples]
        ]

    whole = numbers(1, 0)
    assert sorted(whole) == list(range(23))
    assert numbers(3, 10) == whole[10:]


def test_who_has_nothing_to_evaluate_borrows_a_sample_that_counts_for_nothing() -> None:
    last = [
        list(source(validation=4).validation_batches(rank=rank, num_ranks=3, batch_size=1))[-1]
        for rank in range(3)
    ]
    assert [batch.num_samples for batch in last] == [0, 0, 1]
    assert last[0].targets.tolist() == [IGNORED] and len(last[0].inputs) == 1
