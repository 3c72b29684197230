"""Every sample once an epoch, in an order that the number of ranks cannot change."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.sampler import epoch_order, evaluation_shard, shard

sample_counts = st.integers(0, 300)
world_sizes = st.integers(1, 17)
seeds = st.integers(0, 2**64)
epochs = st.integers(0, 10_000)


def test_shard_is_a_table_one_can_read() -> None:
    assert [shard(0, 8, rank, 4) for rank in range(4)] == [
        range(0, 2),
        range(2, 4),
        range(4, 6),
        range(6, 8),
    ]
    assert [len(shard(10, 20, rank, 3)) for rank in range(3)] == [3, 3, 4]
    assert [len(shard(0, 2, rank, 4)) for rank in range(4)] == [0, 1, 0, 1]


@given(start=sample_counts, size=sample_counts, world_size=world_sizes)
def test_shards_join_without_gap_or_overlap(start: int, size: int, world_size: int) -> None:
    parts = [shard(start, start + size, rank, world_size) for rank in range(world_size)]
    assert [i for part in parts for i in part] == list(range(start, start + size))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 4), (4, 4), (0, 0)])
def test_shard_refuses_a_rank_outside_the_world(rank: int, world_size: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} is not one of {world_size} ranks"):
        shard(0, 10, rank, world_size)


@given(num_samples=sample_counts, world_size=world_sizes)
def test_evaluation_counts_each_sample_once(num_samples: int, world_size: int) -> None:
    parts = [evaluation_shard(num_samples, rank, world_size) for rank in range(world_size)]
    assert sorted(i for part in parts for i in part) == list(range(num_samples))


@given(seed=seeds, epoch=epochs, num_samples=sample_counts)
def test_order_is_a_permutation_that_can_be_made_again(
    seed: int, epoch: int, num_samples: int
) -> None:
    order = epoch_order(num_samples, seed, epoch)
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(num_samples))
    assert torch.equal(order, epoch_order(num_samples, seed, epoch))


@given(seed=seeds, epoch=epochs, other_seed=seeds, other_epoch=epochs)
def test_other_epochs_and_seeds_have_other_orders(
    seed: int, epoch: int, other_seed: int, other_epoch: int
) -> None:
    same = (seed % 2**64, epoch) == (other_seed % 2**64, other_epoch)
    equal = torch.equal(epoch_order(200, seed, epoch), epoch_order(200, other_seed, other_epoch))
    assert equal == same


def test_seed_and_epoch_do_not_stand_in_for_each_other() -> None:
    assert not torch.equal(epoch_order(100, 0, 1), epoch_order(100, 1, 0))


def test_order_ignores_the_global_generator() -> None:
    torch.manual_seed(1)
    first, state = epoch_order(50, 0, 0), torch.random.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(first, epoch_order(50, 0, 0))
    torch.manual_seed(1)
    assert torch.equal(state, torch.random.get_rng_state())
