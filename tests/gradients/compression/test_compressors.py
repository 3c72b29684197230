import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Size, Tensor

from phalanx.gradients.compression.compressor import Compressor
from phalanx.gradients.compression.make import NAMES, make_compressor
from phalanx.gradients.compression.powersgd import layout_of, orthonormalize
from tests.gradients.compression.thread_backend import ThreadBackend, run

SHAPES = [Size(s) for s in ((40, 30), (40,), (30, 4, 5), (7,), (3, 2))]
COUNT = sum(shape.numel() for shape in SHAPES)
STATEFUL = ("int8", "powersgd", "topk")
COMPRESSING = tuple(name for name in NAMES if name != "none")


def made(name: str) -> Compressor:
    compressor = make_compressor(name, powersgd_rank=2, topk_fraction=0.05)
    compressor.prepare(0, SHAPES)
    return compressor


def gradient(rank: int, step: int, count: int = COUNT) -> Tensor:
    """Alike on all ranks, as gradients are, and of many magnitudes."""
    common = torch.Generator().manual_seed(step)
    own = torch.Generator().manual_seed(1000 * step + rank + 1)
    values = torch.randn(count, generator=common) + 0.5 * torch.randn(count, generator=own)
    return values * torch.exp(torch.randn(count, generator=common))


def reduced(name: str, size: int, steps: int = 1) -> list[list[Tensor]]:
    """By rank and step: what a step's sum became."""

    def program(ranks: ThreadBackend) -> list[Tensor]:
        compressor = made(name)
        sums = []
        for step in range(steps):
            values = gradient(ranks.rank, step)
            compressor.reduce(0, values, ranks)
            sums.append(values)
        return sums

    return run(size, program)


def true_sum(size: int, step: int) -> Tensor:
    return torch.stack([gradient(rank, step) for rank in range(size)]).sum(0)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_every_rank_has_the_same_bits_and_every_run(name: str, size: int) -> None:
    first, again = reduced(name, size, steps=3), reduced(name, size, steps=3)
    for results in (*first, *again):
        for step, values in enumerate(results):
            assert torch.equal(values, first[0][step])


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(("name", "error"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_half_types_round_once_each_way(name: str, error: float, size: int) -> None:
    terms = torch.stack([gradient(rank, 0) for rank in range(size)])
    bound = error * (terms.abs().sum(0) + terms.sum(0).abs()) * 1.01 + 1e-9
    assert ((reduced(name, size)[0][0] - terms.sum(0)).abs() <= bound).all()


@pytest.mark.parametrize("size", [2, 3])
def test_int8_is_wrong_by_half_a_step_of_the_scale_each_way(size: int) -> None:
    terms = torch.stack([gradient(rank, 0) for rank in range(size)])
    largest = terms.abs().max() * size
    bound = (largest + terms.abs().max(1).values.sum()) / 254
    assert (reduced("int8", size)[0][0] - terms.sum(0)).abs().max() <= bound


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("size", [2, 3])
def test_error_feedback_corrects_the_sum(name: str, size: int) -> None:
    """The error of the sum over many steps stays as it is: that of a step shrinks like 1/steps."""

    def errors_after(steps: int) -> tuple[float, float]:
        """Of the whole sum's norm, and of a value at most."""
        sums = reduced(name, size, steps)[0]
        truth = torch.stack([true_sum(size, step) for step in range(steps)]).sum(0)
        wrong = torch.stack(sums).sum(0) - truth
        return float(wrong.norm() / truth.norm()), float(wrong.abs().max())

    (few, _), (many, most) = errors_after(5), errors_after(80)
    assert many < few / 2
    if name == "int8":
        # Half a step of the scale each way, as of a single step: what was wrong before is in it.
        terms = torch.stack(
            [torch.stack([gradient(rank, step) for rank in range(size)]) for step in range(80)]
        )
        largest = terms.abs().amax((0, 2)).sum() + terms.sum(1).abs().max()
        assert most <= 1.02 * largest / 254
    else:
        assert many < {"powersgd": 0.6, "topk": 0.4}[name]


@pytest.mark.parametrize("name", COMPRESSING)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sent_bytes_are_those_that_are_sent(name: str, size: int) -> None:
    def program(ranks: ThreadBackend) -> tuple[int, int]:
        compressor = made(name)
        compressor.reduce(0, gradient(ranks.rank, 0), ranks)
        return ranks.sent_bytes, compressor.sent_bytes(SHAPES, ranks.rank, size)

    for counted, formula in run(size, program):
        assert counted == formula


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_is_seen_on_all_ranks_and_forgotten(name: str, bad: float) -> None:
    def program(ranks: ThreadBackend) -> tuple[bool, Tensor]:
        compressor = made(name)
        compressor.reduce(0, gradient(ranks.rank, 0), ranks)
        values = gradient(ranks.rank, 1)
        if ranks.rank == 1:
            values[1234] = bad
        compressor.reduce(0, values, ranks)
        later = gradient(ranks.rank, 2)
        compressor.reduce(0, later, ranks)
        return bool(values.isfinite().all()), later

    results = run(2, program)
    for is_finite, later in results:
        assert not is_finite
        assert later.isfinite().all()
        assert torch.equal(later, results[0][1])


def test_fp16_holds_large_and_small_gradients() -> None:
    for scale in (1e-30, 1e-8, 1e6, 1e30):

        def program(ranks: ThreadBackend, scale: float = scale) -> Tensor:
            values = scale * gradient(ranks.rank, 0)
            made("fp16").reduce(0, values, ranks)
            return values / scale

        error = (run(2, program)[0] - true_sum(2, 0)).abs().max() / true_sum(2, 0).abs().max()
        assert error < 2**-10


@pytest.mark.parametrize("name", STATEFUL)
def test_buckets_made_anew_begin_without_state(name: str) -> None:
    def program(ranks: ThreadBackend) -> tuple[Tensor, Tensor]:
        fresh, used = made(name), made(name)
        used.prepare(1, [Size([50, 50])])
        for number, count in ((0, COUNT), (1, 2500)):
            used.reduce(number, gradient(ranks.rank, 9, count), ranks)
        assert sum(tensor.nbytes for tensor in used.state_dict().values()) > 4 * 2500
        used.prepare(0, SHAPES)
        assert not used.state_dict()
        if name == "powersgd":  # its random beginnings go on
            return torch.zeros(1), torch.zeros(1)
        results = []
        for compressor in (fresh, used):
            values = gradient(ranks.rank, 0)
            compressor.reduce(0, values, ranks)
            results.append(values)
        return results[0], results[1]

    for fresh, used in run(2, program):
        assert torch.equal(fresh, used)


@pytest.mark.parametrize("name", NAMES)
def test_float64_and_no_values_at_all(name: str) -> None:
    def program(ranks: ThreadBackend) -> Tensor:
        compressor = made(name)
        values = gradient(ranks.rank, 0).double()
        compressor.reduce(0, values, ranks)
        compressor.prepare(0, [])
        compressor.reduce(0, torch.empty(0), ranks)
        return values

    results = run(2, program)
    assert results[0].dtype == torch.float64
    assert torch.equal(results[0], results[1])


def test_topk_sends_the_largest_and_of_equal_ones_the_first() -> None:
    def program(ranks: ThreadBackend) -> Tensor:
        compressor = make_compressor("topk", topk_fraction=0.3)
        values = torch.tensor([1.0, -2.0, 2.0, 2.0, 0.5, -3.0, 2.0, 0.0, 0.0, 0.0])
        compressor.reduce(0, values if ranks.rank == 0 else values.zero_(), ranks)
        return values

    expected = torch.tensor([0.0, -2.0, 2.0, 0.0, 0.0, -3.0, 0.0, 0.0, 0.0, 0.0])
    assert torch.equal(run(2, program)[0], expected)


def test_powersgd_finds_a_product_of_low_rank_exactly() -> None:
    def program(ranks: ThreadBackend) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(ranks.rank)
        right = torch.randn(2, 30, generator=torch.Generator().manual_seed(5))
        matrix = torch.randn(40, 2, generator=generator) @ right
        compressor = make_compressor("powersgd", powersgd_rank=2)
        compressor.prepare(0, [matrix.shape])
        for _ in range(3):
            values = matrix.flatten().clone()
            compressor.reduce(0, values, ranks)
        return matrix, values

    results = run(3, program)
    truth = torch.stack([matrix for matrix, _ in results]).sum(0)
    assert torch.allclose(results[0][1].view(40, 30), truth, atol=1e-4)


def test_powersgd_wakes_up_after_a_gradient_of_zeros() -> None:
    def program(ranks: ThreadBackend) -> Tensor:
        compressor = made("powersgd")
        for _ in range(2):
            compressor.reduce(0, torch.zeros(COUNT), ranks)
        values = gradient(ranks.rank, 0)
        compressor.reduce(0, values, ranks)
        return values

    assert run(2, program)[0][:1200].abs().sum() > 0


def test_powersgd_leaves_small_matrices_and_vectors_as_they_are() -> None:
    layout = layout_of(SHAPES, 2)
    assert layout == [(40, 30, 2), (40, 1, 0), (30, 20, 2), (7, 1, 0), (3, 2, 0)]


@given(st.integers(1, 12), st.integers(1, 6), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_columns_are_orthonormal_or_nothing(
    rows: int, columns: int, random: Callable[..., object]
) -> None:
    generator = torch.Generator().manual_seed(random.randint(0, 2**31))  # type: ignore[attr-defined]
    values = torch.randn(rows, columns, generator=generator)
    if columns > 2:
        values[:, 2] = 3 * values[:, 0]  # says nothing new
    orthonormalize(values)
    products = values.t() @ values
    diagonal = products.diagonal()
    assert torch.allclose(products - products.diagonal().diag(), torch.zeros(()), atol=1e-5)
    assert all(abs(d - 1) < 1e-5 or d == 0 for d in diagonal.tolist())
    assert int((diagonal > 0.5).sum()) == min(rows, columns - (columns > 2))


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="'gzip' is not a compressor; there are none, fp16"):
        make_compressor("gzip")
    with pytest.raises(ValueError, match="at least 1"):
        make_compressor("powersgd", powersgd_rank=0)
    with pytest.raises(ValueError, match=r"in \(0, 1\]"):
        make_compressor("topk", topk_fraction=0)
