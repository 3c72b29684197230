"""LARS and LAMB against their formulas, written out for one parameter at a time."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from phalanx.gradients.optimizer_update import STATE_NAMES, OptimizerConfig
from phalanx.parallel.layerwise import LAMB, LARS
from phalanx.parallel.optimizer import torch_optimizer

Array = NDArray[np.float64]
SHAPES = ((4, 3), (2, 3, 2), (5,), (3, 3))
STEPS = 6


def lars(w: Array, gradients: list[Array], rates: list[float], decay: float) -> Array:
    v = np.zeros_like(w)
    for g, rate in zip(gradients, rates, strict=True):
        norm_w, norm_g = np.linalg.norm(w), np.linalg.norm(g)
        trust = 0.02 * norm_w / (norm_g + decay * norm_w) if w.ndim > 1 and norm_w else 1.0
        v = 0.9 * v + rate * trust * (g + decay * w)
        w = w - v
    return w


def lamb(x: Array, gradients: list[Array], rates: list[float], decay: float) -> Array:
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        u = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + decay * x
        norm_x, norm_u = np.linalg.norm(x), np.linalg.norm(u)
        x = x - rate * (norm_x / norm_u if x.ndim > 1 and norm_x and norm_u else 1.0) * u
    return x


def rule(name: Any, decay: float) -> OptimizerConfig:
    return OptimizerConfig(
        name=name,
        learning_rate=1.0,
        momentum=0.9,
        weight_decay=decay,
        epsilon=1e-6,
        trust_coefficient=0.02,
    )


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("name", "formula"), [("lars", lars), ("lamb", lamb)])
def test_the_numbers_are_those_of_the_formula(
    name: str, formula: Callable[..., Array], decay: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    parameters = [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for shape in SHAPES
    ]
    with torch.no_grad():
        parameters[-1].zero_()  # where the norm is nothing, no ratio
    starts = [parameter.detach().numpy().copy() for parameter in parameters]
    optimizer = torch_optimizer(rule(name, decay), parameters)
    rates = [0.5 / (step + 1) for step in range(STEPS)]
    gradients: list[list[Array]] = [[] for _ in parameters]
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        for number, parameter in enumerate(parameters):
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            gradients[number].append(parameter.grad.numpy().copy())
        optimizer.step()
    for parameter, start, given in zip(parameters, starts, gradients, strict=True):
        expected = formula(start, given, rates, decay)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_the_state_has_the_names_that_checkpoints_and_formulas_know(name: str) -> None:
    parameters = [nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(2))]
    optimizer = torch_optimizer(rule(name, 0.0), parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for parameter in parameters:
        state = optimizer.state[parameter]
        of_each = {key for key, value in state.items() if value.dim() > 0}
        assert of_each == set(STATE_NAMES[rule(name, 0.0).kind])
        assert set(state) - of_each <= {"step"}


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_a_parameter_without_a_gradient_stays(kind: Callable[..., Any]) -> None:
    used, unused = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = kind([used, unused], lr=0.1, weight_decay=0.1)
    used.grad = torch.ones(2, 2)
    optimizer.step()
    assert not torch.equal(used, torch.ones(2, 2))
    assert torch.equal(unused, torch.ones(2, 2))
    assert unused not in optimizer.state


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_how_large_gradients_are_says_nothing_to_lars(scale: float) -> None:
    made = []
    for factor in (1.0, scale):
        parameter = nn.Parameter(torch.arange(1.0, 7.0).view(2, 3))
        optimizer = LARS([parameter], lr=0.5, trust_coefficient=0.1)
        for _ in range(3):
            parameter.grad = factor * torch.tensor([[1.0, -2.0, 0.5], [0.1, 3.0, 1.0]])
            optimizer.step()
        made.append(parameter.detach())
    assert torch.allclose(made[0], made[1], rtol=1e-5)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_a_copy_goes_on_as_the_original(name: Any) -> None:
    """PyTorch copies and pickles the state of an optimizer alone: a copy had no norms."""
    both = []
    for copied in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch_optimizer(rule(name, 0.1), model.parameters())
        for _ in range(2):
            model(torch.ones(4, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if copied:
                model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
        both.append(model.weight.detach())
    assert torch.equal(*both)
