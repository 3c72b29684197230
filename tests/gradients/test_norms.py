import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from phalanx.comm import kernels
from phalanx.errors import UserError
from phalanx.gradients.norms import (
    NonFiniteGradients,
    _sum_at_once,
    are_finite,
    clip_factor,
    describe_nonfinite,
    find_nonfinite,
    square_of,
    squares_of,
)
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import IGNORED, Batch, StepOptions
from tests.parallel.stepping import cross_entropy_sum, make_step

SGD = OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9)
NAMES = ("first.weight", "first.bias", "second.weight", "second.bias")
FINE = NonFiniteGradients(-1, 0, 1.5)


def test_squares_of_many_shapes() -> None:
    tensors = [torch.full((2, 3), 2.0), torch.empty(0), torch.tensor(3.0)]
    assert squares_of(tensors).tolist() == [24.0, 0.0, 9.0]


def test_squares_that_a_gpu_sums_at_once() -> None:
    tensors = [
        torch.randn(3, 5),
        torch.randn(7, dtype=torch.float64),
        torch.randn(()),
        -torch.ones(4),
    ]
    truth = sum(map(square_of, tensors))
    assert _sum_at_once(tensors) == pytest.approx(truth, rel=1e-6)
    for value in (math.nan, math.inf):
        assert not math.isfinite(_sum_at_once([*tensors, torch.tensor([1.0, value])]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(value: float) -> None:
    tensor = torch.ones(1000)
    tensor[777] = value
    assert not math.isfinite(square_of(tensor))


@pytest.mark.parametrize("way", ["C", "arrays"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_of_many_is_found(
    monkeypatch: pytest.MonkeyPatch, way: str, dtype: torch.dtype
) -> None:
    """In gradients of any shape, type and order in memory; large ones are no bad ones."""
    if way == "arrays":
        monkeypatch.setenv(kernels.VARIABLE, "arrays")
    large, module = torch.finfo(dtype).max, kernels.compiled()
    tensors = [torch.full((3, 5), large / 2, dtype=dtype), torch.empty(0, dtype=dtype)]
    tensors.append(torch.ones(7, 9, dtype=dtype).t())
    assert are_finite([], module)
    assert are_finite(tensors, module)
    assert are_finite([*tensors, torch.ones(3)], module)
    for number, place in ((0, (2, 4)), (2, (8, 6))):
        kept = tensors[number][place].clone()
        for value in (math.nan, math.inf, -math.inf):
            tensors[number][place] = value
            assert not are_finite(tensors, module)
            assert not are_finite([torch.ones(3), *tensors], module)
        tensors[number][place] = kept


def test_a_square_that_overflows_is_no_bad_gradient() -> None:
    assert square_of(torch.full((4,), 1e30)) == pytest.approx(4e60)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_clipped_is_no_longer_than_asked_for(norm: float, most: float) -> None:
    factor = clip_factor(norm, most)
    assert norm * factor == pytest.approx(min(norm, most))


def test_the_last_of_the_model_is_the_first_of_the_backward_pass() -> None:
    bad = torch.tensor([1.0, math.nan])
    assert find_nonfinite([bad, None, bad, torch.ones(2)], 0.5) == NonFiniteGradients(2, 2, 0.5)
    assert find_nonfinite([torch.ones(2), None], 0.5).number == 0


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (
            [FINE, NonFiniteGradients(2, 3, math.nan)],
            "step 7: gradients are not finite: the loss of rank 1 is nan; the backward pass first "
            "produced them at second.weight and 2 more parameters",
        ),
        (
            [NonFiniteGradients(0, 1, 2.0), FINE, NonFiniteGradients(3, 4, 2.0)],
            "step 7: gradients are not finite on ranks 0, 2; the backward pass first produced "
            "them at first.weight",
        ),
        (
            [FINE, FINE],
            "step 7: gradients are not finite: they are finite on every rank, but not their sum "
            "over the ranks: second.bias and 1 more parameter",
        ),
    ],
)
def test_whose_they_are_is_told(ranks: list[NonFiniteGradients], words: str) -> None:
    assert describe_nonfinite(7, ranks, NonFiniteGradients(3, 2, 0.0), NAMES) == words


def test_what_does_not_come_again_is_told_as_that() -> None:
    assert describe_nonfinite(7, [FINE, FINE], FINE, NAMES).endswith(
        "not finite, but were finite when they were computed again: a memory or message fault?"
    )


def made(options: StepOptions | None = None) -> Replicas:
    torch.manual_seed(0)
    strategy = Replicas(RunGroup(), options)
    strategy.prepare(nn.Linear(3, 4), SGD)
    return strategy


def batch(step: int, value: float = 1.0) -> Batch:
    inputs = torch.tensor([[0.1, 0.2, 0.3], [1.0, value, -1.0]])
    return Batch(inputs, torch.tensor([1, 3]), 2, 2, step)


def test_a_run_stops_where_gradients_are_not_finite() -> None:
    strategy = made()
    make_step(strategy, batch(0))
    with pytest.raises(UserError, match=r"step 1: .* the loss of rank 0 is nan; .* bias"):
        make_step(strategy, batch(1, math.nan))


def test_a_step_that_is_skipped_changes_nothing() -> None:
    strategy = made(StepOptions(skips_nonfinite=True))
    assert not make_step(strategy, batch(0)).is_skipped
    weights = [p.detach().clone() for p in strategy.model.parameters()]
    momentum = [s["momentum_buffer"].clone() for s in strategy.optimizer_state().values()]
    assert make_step(strategy, batch(1, math.inf)).is_skipped
    after = [s["momentum_buffer"] for s in strategy.optimizer_state().values()]
    assert all(map(torch.equal, strategy.model.parameters(), weights))
    assert all(map(torch.equal, after, momentum))
    assert not make_step(strategy, batch(2)).is_skipped


def test_clipping_is_that_of_pytorch() -> None:
    clipped, plain = made(StepOptions(clip_norm=0.05)), made()
    make_step(clipped, batch(0))
    plain.clear_gradients()
    loss = cross_entropy_sum(plain.model(batch(0).inputs), batch(0).targets)
    (loss / 2).backward()
    nn.utils.clip_grad_norm_(plain.model.parameters(), 0.05)
    plain.optimizer.step()
    for found, expected in zip(clipped.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(6,), (3, 2)])
def test_smoothed_loss_adds_up_over_uneven_parts(shape: tuple[int, ...]) -> None:
    """And ignored targets count for nothing in it."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(*shape, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(5, shape, generator=generator)
    targets.view(-1)[1] = IGNORED
    whole = cross_entropy_sum(logits, targets, 0.1)
    flat = logits.view(-1, 5).log_softmax(-1)
    by_hand = sum(
        -(0.9 * row[target] + 0.1 * row.mean())
        for row, target in zip(flat, targets.view(-1), strict=True)
        if target != IGNORED
    )
    parts = [
        cross_entropy_sum(some, of_them, 0.1)
        for some, of_them in zip(logits.split([1, shape[0] - 1]), targets.split([1, shape[0] - 1]),
                                 strict=True)
    ]  # fmt: skip
    assert whole.item() == pytest.approx(float(by_hand))
    assert sum(part.item() for part in parts) == pytest.approx(whole.item())
