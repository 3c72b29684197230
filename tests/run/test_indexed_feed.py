"""Every sample once an epoch, in an order that neither ranks nor a break can change."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.sampler import epoch_order, num_batches
from phalanx.data.samples import TensorSamples
from phalanx.run.batch import MicroBatch, Position
from phalanx.run.feed import FeedPlace, IndexedFeed
from phalanx.run.order import ShuffledOrder

sample_counts = st.integers(1, 120)
batch_sizes = st.integers(1, 40)


def batches_of(
    rank: int, num_ranks: int, num_samples: int, batch_size: int, seen: int = 0
) -> list[MicroBatch]:
    place = FeedPlace(
        batch_size=batch_size, micro_batches=num_ranks, seed=3, rank=rank, num_ranks=num_ranks
    )
    feed = IndexedFeed(
        TensorSamples([torch.arange(num_samples)], is_single=True),
        ShuffledOrder(num_samples, batch_size, 3),
        place,
    )
    return list(feed.micro_batches(Position(4, seen), 1000))


def given_out(num_ranks: int, num_samples: int, batch_size: int, seen: int = 0) -> list[int]:
    """Samples in the order of steps and ranks."""
    ranks = [batches_of(r, num_ranks, num_samples, batch_size, seen) for r in range(num_ranks)]
    steps = list(zip(*ranks, strict=True))
    assert len(steps) == num_batches(num_samples - seen, batch_size)
    for parts in steps:
        assert len({part.global_samples for part in parts}) == 1
        assert sum(part.num_samples for part in parts) == parts[0].global_samples
    assert all(parts[0].global_samples == batch_size for parts in steps[:-1])
    return [int(s) for parts in steps for part in parts for s in part.data[: part.num_samples]]


@settings(deadline=None)
@given(num_samples=sample_counts, num_ranks=st.integers(1, 9), batch_size=batch_sizes)
def test_ranks_together_make_the_batches_of_one_process(
    num_samples: int, num_ranks: int, batch_size: int
) -> None:
    order = epoch_order(num_samples, 3, 4).tolist()
    assert given_out(num_ranks, num_samples, batch_size) == order


@settings(deadline=None)
@given(
    num_samples=sample_counts,
    num_ranks=st.integers(1, 5),
    batch_size=batch_sizes,
    cut=st.integers(0, 200),
)
def test_an_epoch_that_was_cut_goes_on_in_the_same_order_on_other_ranks(
    num_samples: int, num_ranks: int, batch_size: int, cut: int
) -> None:
    position = min(cut // batch_size * batch_size, (num_samples - 1) // batch_size * batch_size)
    left = epoch_order(num_samples, 3, 4).tolist()[position:]
    assert given_out(num_ranks, num_samples, batch_size, position) == left


def test_a_last_batch_smaller_than_the_world_leaves_ranks_with_padding() -> None:
    last = [batches_of(rank, 4, 10, 8)[-1] for rank in range(4)]
    assert [part.num_samples for part in last] == [0, 1, 0, 1]
    assert all(len(part.data) == 1 and part.ends_epoch for part in last)
