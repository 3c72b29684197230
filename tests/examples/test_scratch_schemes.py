"""Every scheme gives the parameters of one process, for any number of ranks and layers, and moves
the bytes that its formula says."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costs import expected_costs
from hypothesis import given
from hypothesis import strategies as st
from tensor import partitions_outputs, parts_of

import phalanx as package
from tests.conftest import Ranks
from train import batches, check, epoch_order, parse

PARAMETERS = 785 * 128 + 129 * 10
WRONG = {
    "--epochs must be at least 1, not -1": ("--epochs -1", 2),
    "--train-samples must be at least 1, not 0": ("--train-samples 0", 2),
    "--lr must be positive, not 0.0": ("--lr 0", 2),
    "--lr must be positive, not nan": ("--lr nan", 2),
    "--momentum must be from 0 to below 1, not 1.0": ("--momentum 1", 2),
    "--seed must not be negative, not -1": ("--seed -1", 2),
    "--timeout-s must be positive, not 0.0": ("--timeout-s 0", 2),
    "--hidden must be widths of at least 1, not 64 0": ("--hidden 64 0", 2),
    "--servers is for --scheme server, not ring": ("--servers 2", 2),
    "--servers must be at least 1, not 0": ("--scheme server --servers 0", 2),
    "--scheme alone is one process, not 2 ranks": ("--scheme alone", 2),
    "--servers 2 of 2 ranks leaves no worker: start 3 ranks or more": (
        ("--scheme server --servers 2", 2)
    ),
    "a global batch of 3 cannot be split over 4 workers: use --batch-size 4": (
        ("--batch-size 3", 4)
    ),
    "the 4 outputs of layer 1 over 6 ranks, so that some get nothing: use at most 4 ranks": (
        ("--scheme tensor --hidden 4", 6)
    ),
    "splits the 5 inputs of layer 3 over 6 ranks": ("--scheme tensor --hidden 16 5", 6),
}


@pytest.mark.mpi
def test_every_scheme_agrees_with_one_process(
    new_ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    output = new_ranks.mpi(8, programs("agreement.py"), "2", "3", "4", "8")
    assert "all schemes agree" in output


@pytest.mark.mpi
@pytest.mark.alone
def test_nobody_burns_a_core_while_waiting(
    new_ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    assert "waited quietly" in new_ranks.mpi(3, programs("waiting.py"))


@pytest.mark.parametrize("message", WRONG)
def test_options_that_do_not_fit(message: str) -> None:
    words, ranks = WRONG[message]
    with pytest.raises(package.UserError) as caught:
        check(parse(words.split()), ranks)
    assert message in str(caught.value)


def test_a_width_that_is_not_cut_may_be_small() -> None:
    check(parse(["--scheme", "tensor", "--hidden", "16", "5", "16"]), 6)


def costs(words: str = "", *, rank: int = 0, ranks: int = 4) -> Any:
    return expected_costs(parse(words.split()), rank, ranks, batch_size=128)


def test_a_ring_that_divides() -> None:
    ring = costs("--hidden 126")  # 100,180 parameters
    assert ring.sent_bytes == ring.received_bytes == 2 * 3 / 4 * 4 * 100_180
    assert ring.state_bytes == 12 * 100_180
    assert (ring.traffic_formula, ring.state_formula) == ("2(p−1)/p · 4Ψ", "12Ψ")


@pytest.mark.parametrize("scheme", ["library", "ring"])
def test_what_is_sent_is_received(scheme: str) -> None:
    ranks = [costs(f"--scheme {scheme}", rank=rank, ranks=3) for rank in range(3)]
    sent = sum(rank.sent_bytes for rank in ranks)
    assert sent == sum(rank.received_bytes for rank in ranks) == 3 * 2 * 2 / 3 * 4 * PARAMETERS


def test_servers_share_what_one_would_carry() -> None:
    one = costs("--scheme server")
    assert one.sent_bytes == one.received_bytes == 3 * 4 * PARAMETERS
    assert one.state_bytes == 12 * PARAMETERS
    two = [costs("--scheme server --servers 2", rank=rank) for rank in range(4)]
    assert [each.sent_bytes for each in two] == [4 * PARAMETERS] * 4
    assert [each.state_bytes for each in two] == [6 * PARAMETERS] * 2 + [8 * PARAMETERS] * 2


def test_tensor_moves_activations() -> None:
    pair = costs("--scheme tensor")
    assert pair.sent_bytes == 2 * 3 / 4 * 4 * 128 * 10
    assert pair.traffic_formula == "2(p−1)/p · 4B · (10), B the batch"
    deeper = costs("--scheme tensor --hidden 128 64 32")
    assert deeper.sent_bytes == 2 * 3 / 4 * 4 * 128 * (64 + 64 + 10)
    odd = costs("--scheme tensor --hidden 128 64")
    assert odd.sent_bytes == 2 * 3 / 4 * 4 * 128 * (64 + 64 / 2 + 10)
    assert odd.traffic_formula == "2(p−1)/p · 4B · (64 + 10 + 64/2), B the batch"
    assert odd.state_bytes == 12 * (785 * 32 + (32 + 1) * 64 + (16 + 1) * 10)


def test_one_process_sends_nothing() -> None:
    alone = costs("--scheme alone --dtype float64", ranks=1)
    assert (alone.sent_bytes, alone.received_bytes) == (0, 0)
    assert alone.state_bytes == 3 * 8 * PARAMETERS


def test_layers_are_cut_in_pairs() -> None:
    assert not partitions_outputs(0, 1)
    assert [partitions_outputs(number, 3) for number in range(3)] == [True, False, False]
    assert [partitions_outputs(number, 4) for number in range(4)] == [True, False, True, False]
    parts = [parts_of((784, 7, 10), rank, 3) for rank in range(3)]
    assert [list(first.columns) for first, _ in parts] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [list(second.rows) for _, second in parts] == [[0, 1], [2, 3], [4, 5, 6]]
    assert all(first.rows == range(784) and second.columns == range(10) for first, second in parts)
    assert [(a.size, b.size) for a, b in parts] == [(1570, 30), (1570, 30), (2355, 40)]


@given(st.lists(st.integers(5, 12), min_size=2, max_size=6), st.integers(1, 5))
def test_the_parts_make_up_the_whole(sizes: Sequence[int], ranks: int) -> None:
    for layer in zip(*(parts_of(sizes, rank, ranks) for rank in range(ranks)), strict=True):
        counts = np.zeros((layer[0].inputs, layer[0].outputs))
        for part in layer:
            counts[np.ix_(part.rows, part.columns)] += 1
        assert (counts == 1).all()


@given(st.integers(1, 200), st.integers(1, 50))
def test_batches_cover_every_sample_once(num_samples: int, batch_size: int) -> None:
    cut = [range(num_samples)[batch] for batch in batches(num_samples, batch_size)]
    assert [sample for batch in cut for sample in batch] == list(range(num_samples))
    assert all(len(batch) == batch_size for batch in cut[:-1])


def test_an_order_belongs_to_its_seed_and_epoch() -> None:
    orders = [epoch_order(50, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert np.array_equal(epoch_order(50, seed=0, epoch=1), orders[1])
