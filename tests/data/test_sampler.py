"""Every sample once an epoch, in an order that the number of ranks cannot change."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.sampler import epoch_order

sample_counts = st.integers(0, 300)
seeds = st.integers(0, 2**64)
epochs = st.integers(0, 10_000)


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
