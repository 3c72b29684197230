"""Gradients written by hand against central differences, and against those of PyTorch."""

from typing import Any

import numpy as np
import pytest
import torch
from network import (
    Linear,
    Momentum,
    Network,
    ReLU,
    Sigmoid,
    SoftmaxCrossEntropy,
    full_layers,
)
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

Values = NDArray[np.float64]

BATCH, INPUTS, OUTPUTS = 5, 7, 4
SIZES = (INPUTS, 6, 5, OUTPUTS)


def random(*shape: int, seed: int = 0) -> Values:
    return np.random.default_rng(seed).normal(size=shape)


def labels(count: int = BATCH) -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(OUTPUTS, size=count)


def network_of(
    sizes: tuple[int, ...], activation: str = "relu", *, seed: int = 0, dtype: str = "float64"
) -> Network:
    return Network(full_layers(sizes), activation, seed=seed, dtype=dtype)


def linear() -> Linear:
    (part,) = full_layers((INPUTS, OUTPUTS))
    return Linear(part, part.initial(0), np.zeros(part.size), is_first=False)


def differences(values: Values, loss: object, step: float = 1e-6) -> Values:
    """Central differences of `loss()` by each of `values`, which is changed and put back."""
    gradient = np.zeros_like(values)
    for place in np.ndindex(values.shape):
        before = values[place]
        values[place] = before + step
        above = loss()  # type: ignore[operator]
        values[place] = before - step
        below = loss()  # type: ignore[operator]
        values[place] = before
        gradient[place] = (above - below) / (2 * step)
    return gradient


@pytest.mark.parametrize(
    ("module", "width"),
    [(linear(), OUTPUTS), (ReLU(), INPUTS), (Sigmoid(), INPUTS)],
    ids=["linear", "relu", "sigmoid"],
)
def test_a_module_takes_gradients_back(module: Any, width: int) -> None:
    inputs, weights = random(BATCH, INPUTS), random(BATCH, width, seed=2)

    def loss() -> float:
        return float((module.forward(inputs) * weights).sum())

    loss()
    np.testing.assert_allclose(module.backward(weights), differences(inputs, loss), atol=1e-8)
    if isinstance(module, Linear):
        pairs = [(module.weight, module.by_weight), (module.bias, module.by_bias)]
        for values, gradient in pairs:
            assert np.abs(gradient).max() > 0.1
            np.testing.assert_allclose(gradient, differences(values, loss), atol=1e-7)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_the_whole_network_takes_gradients_back(activation: str) -> None:
    network, inputs = network_of(SIZES, activation, seed=3), random(BATCH, INPUTS)

    def loss() -> float:
        return float(network.forward(inputs, labels()).losses.sum()) / BATCH

    loss()
    network.backward(BATCH)
    gradients = network.gradients.copy()
    np.testing.assert_allclose(gradients, differences(network.parameters, loss), atol=1e-8)


def as_torch(network: Network, activation: type[nn.Module]) -> nn.Sequential:
    """The same network with the same parameters."""
    layers: list[nn.Module] = []
    for module in network.modules:
        if not isinstance(module, Linear):
            layers.append(activation())
            continue
        layer = nn.Linear(*module.weight.shape, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(module.weight.T))
            layer.bias.copy_(torch.from_numpy(module.bias))
        layers.append(layer)
    return nn.Sequential(*layers)


def flat(tensors: list[torch.Tensor]) -> Values:
    """In our order, with weights (inputs, outputs)."""
    return np.concatenate([t.detach().numpy().T.reshape(-1) for t in tensors])


@pytest.mark.parametrize(("activation", "other"), [("relu", nn.ReLU), ("sigmoid", nn.Sigmoid)])
def test_twenty_steps_are_those_of_pytorch(activation: str, other: type[nn.Module]) -> None:
    network = network_of(SIZES, activation, seed=4)
    model = as_torch(network, other)
    ours = Momentum(network.parameters, lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(20):
        inputs, targets = random(BATCH, INPUTS, seed=step), labels()
        result = network.forward(inputs, targets)
        network.backward(BATCH)
        theirs.zero_grad()
        outputs = model(torch.from_numpy(inputs))
        loss = F.cross_entropy(outputs, torch.from_numpy(targets))
        loss.backward()
        assert result.losses.mean() == pytest.approx(loss.item(), abs=1e-12)
        assert (result.hits == (outputs.argmax(1) == torch.from_numpy(targets)).numpy()).all()
        gradients = [parameter.grad for parameter in model.parameters()]
        np.testing.assert_allclose(network.gradients, flat(gradients), atol=1e-12)  # type: ignore[arg-type]
        ours.step(network.gradients)
        theirs.step()
    np.testing.assert_allclose(network.parameters, flat(list(model.parameters())), atol=1e-12)


def test_softmax_of_huge_and_tiny_rows_in_one_batch() -> None:
    """The maximum of a whole batch would turn the second row into 0 ÷ 0."""
    criterion = SoftmaxCrossEntropy()
    outputs = np.array([[1e4, 0.0, -1e4], [-1e4, -1e4 + 1, -1e4]], np.float32)
    result = criterion.forward(outputs, np.array([0, 1]))
    np.testing.assert_allclose(result.losses, [0.0, np.log(2 / np.e + 1)], atol=1e-6)
    assert np.isfinite(criterion.backward(2)).all()


def test_sigmoid_overflows_nowhere() -> None:
    ends = Sigmoid().forward(np.array([[-1e4, 0.0, 1e4]], np.float32))
    np.testing.assert_array_equal(ends, [[0.0, 0.5, 1.0]])


def test_a_rank_without_samples_has_gradients_of_zero() -> None:
    network = network_of(SIZES, dtype="float32")
    network.forward(np.zeros((2, INPUTS), np.float32), np.array([0, 1]))
    network.backward(2)
    assert network.gradients.any()
    result = network.forward(np.zeros((0, INPUTS), np.float32), np.zeros(0, np.int64))
    network.backward(2)
    assert result.losses.sum() == 0
    assert not network.gradients.any()


def test_layers_of_one_shape_begin_differently_and_every_time_the_same() -> None:
    network, again = (network_of((8, 8, 8, 8), seed=5) for _ in range(2))
    first, second, third = (m.weight for m in network.modules if isinstance(m, Linear))
    assert not np.allclose(first, second)
    assert not np.allclose(second, third)
    assert np.array_equal(network.parameters, again.parameters)
    assert not np.allclose(network.parameters, network_of((8, 8, 8, 8), seed=6).parameters)
    bound = 8**-0.5
    assert 0.9 * bound < np.abs(network.parameters).max() <= bound


def test_single_precision_begins_with_the_rounded_weights() -> None:
    double, single = (network_of(SIZES, dtype=dtype) for dtype in ("float64", "float32"))
    assert single.parameters.dtype == np.float32
    np.testing.assert_array_equal(single.parameters, double.parameters.astype(np.float32))


def test_the_layers_live_in_one_vector() -> None:
    network = network_of(SIZES)
    assert network.parameters.size == 48 + 35 + 24
    network.parameters[...], network.gradients[...] = 1, 2
    for layer in network.modules[::2]:
        assert (layer.weight == 1).all() and (layer.bias == 1).all()
        assert (layer.by_weight == 2).all() and (layer.by_bias == 2).all()
