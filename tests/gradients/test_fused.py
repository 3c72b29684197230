"""Formulas of the optimizers: C against array operations, and both against torch.optim."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.optim import SGD, Adam, AdamW, Optimizer

from phalanx.comm import kernels
from phalanx.comm.dtypes import DTYPES
from phalanx.gradients.optimizer_update import (
    STATE_NAMES,
    OptimizerConfig,
    OptimizerKind,
)
from tests.gradients.programs.oracle import apply_update

RULES = [
    OptimizerConfig(name="sgd", learning_rate=0.1),
    OptimizerConfig(name="sgd", learning_rate=0.1, weight_decay=0.01),
    OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.01),
    OptimizerConfig(name="adam", learning_rate=1e-3),
    OptimizerConfig(name="adam", learning_rate=1e-3, weight_decay=0.01),
    OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.01),
    OptimizerConfig(name="adamw", learning_rate=1e-2, betas=(0.8, 0.95), epsilon=1e-6),
]
NAMES = [f"{r.name}-{r.momentum}-{r.weight_decay}-{r.betas}" for r in RULES]


def torch_of(rule: OptimizerConfig, parameter: torch.Tensor) -> Optimizer:
    rate, decay = rule.learning_rate, rule.weight_decay
    if rule.name == "sgd":
        return SGD([parameter], lr=rate, momentum=rule.momentum, weight_decay=decay)
    kind = Adam if rule.name == "adam" else AdamW
    return kind([parameter], lr=rate, betas=rule.betas, eps=rule.epsilon, weight_decay=decay)


def apply_in_c(formula, coefficients, parameters, states, gradients) -> None:
    module = kernels.compiled()
    assert module is not None
    module.apply_update(
        formula,
        coefficients,
        parameters.ctypes.data,
        [state.ctypes.data for state in states],
        gradients.ctypes.data,
        parameters.size,
        DTYPES[parameters.dtype.name].code,
    )


WAYS = [
    pytest.param(apply_update, id="arrays"),
    pytest.param(
        apply_in_c,
        id="C",
        marks=pytest.mark.skipif(kernels.compiled() is None, reason="no C kernels were built"),
    ),
]


def slice_of(formula: OptimizerKind, count: int, dtype: str, seed: int) -> list[NDArray]:
    """Parameters, gradients and states, the second of which is not negative."""
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(count) for _ in range(2 + len(STATE_NAMES[formula]))]
    return [(abs(a) if k == 3 else a).astype(dtype) for k, a in enumerate(arrays)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
@pytest.mark.parametrize("way", WAYS)
def test_fifty_steps_are_those_of_torch(way, rule: OptimizerConfig, dtype: str) -> None:
    rng = np.random.default_rng(0)
    parameters = rng.standard_normal(1003).astype(dtype)
    states = [np.zeros_like(parameters) for _ in STATE_NAMES[rule.kind]]
    theirs = torch.from_numpy(parameters.copy()).requires_grad_()
    optimizer = torch_of(rule, theirs)
    for step in range(1, 51):
        rate = rule.learning_rate / step
        gradients = rng.standard_normal(1003).astype(dtype)
        way(rule.kind, rule.coefficients(rate, step), parameters, states, gradients)
        optimizer.param_groups[0]["lr"] = rate
        theirs.grad = torch.from_numpy(gradients)
        optimizer.step()
    tolerance = {"float32": 2e-5, "float64": 1e-13}[dtype]
    np.testing.assert_allclose(parameters, theirs.detach().numpy(), rtol=0, atol=tolerance)
    for name, state in zip(STATE_NAMES[rule.kind], states, strict=True):
        found = optimizer.state[theirs][name].numpy()
        np.testing.assert_allclose(state, found, rtol=0, atol=tolerance)


@pytest.mark.skipif(kernels.compiled() is None, reason="no C kernels were built")
@given(
    rule=st.sampled_from(RULES),
    dtype=st.sampled_from(["float32", "float64"]),
    count=st.integers(0, 3000),
    step=st.integers(1, 10_000),
)
def test_c_and_arrays_give_the_same_bits(
    rule: OptimizerConfig, dtype: str, count: int, step: int
) -> None:
    coefficients = rule.coefficients(rule.learning_rate, step)
    found = []
    for way in (apply_update, apply_in_c):
        parameters, gradients, *states = slice_of(rule.kind, count, dtype, step)
        given = gradients.copy()
        way(rule.kind, coefficients, parameters, states, gradients)
        assert np.array_equal(gradients, given), "the gradients were changed"
        found.append([array.tobytes() for array in (parameters, *states)])
    assert found[0] == found[1]
