"""Gradients written by hand against central differences, and against those of PyTorch."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from phalanx.scratch.initial import initial_bias, initial_weight
from phalanx.scratch.loss import SoftmaxCrossEntropy
from phalanx.scratch.modules import Linear, Module, ReLU, Sigmoid
from phalanx.scratch.momentum import Momentum
from phalanx.scratch.network import FeedForwardNetwork, multilayer

Values = NDArray[np.float64]

BATCH, INPUTS, OUTPUTS = 5, 7, 4
SIZES = (INPUTS, 6, 5, OUTPUTS)


def random(*shape: int, seed: int = 0) -> Values:
    return np.random.default_rng(seed).normal(size=shape)


def labels(count: int = BATCH) -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(OUTPUTS, size=count)


def linear() -> Linear:
    weight = initial_weight(INPUTS, OUTPUTS, seed=0, name="linear")
    return Linear("linear", weight, initial_bias(INPUTS, OUTPUTS, seed=0, name="linear"), "float64")


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
    [(linear(), OUTPUTS), (ReLU(INPUTS), INPUTS), (Sigmoid(INPUTS, "float64"), INPUTS)],
    ids=["linear", "relu", "sigmoid"],
)
def test_a_module_takes_gradients_back(module: Module, width: int) -> None:
    inputs, weights = random(BATCH, INPUTS), random(BATCH, width, seed=2)

    def loss() -> float:
        return float((module.forward(inputs.copy()) * weights).sum())

    loss()
    by_inputs = module.backward(weights.copy()).copy()
    by_parameters = [p.gradient.copy() for p in module.parameters]
    np.testing.assert_allclose(by_inputs, differences(inputs, loss), atol=1e-8)
    for parameter, gradient in zip(module.parameters, by_parameters, strict=True):
        assert np.abs(gradient).max() > 0.1
        np.testing.assert_allclose(gradient, differences(parameter.value, loss), atol=1e-7)


def test_the_loss_takes_gradients_back() -> None:
    criterion, outputs = SoftmaxCrossEntropy(), 3 * random(BATCH, OUTPUTS)

    def loss() -> float:
        return criterion.forward(outputs.copy(), labels()).loss_sum / 11

    loss()
    gradient = criterion.backward(11).copy()
    np.testing.assert_allclose(gradient, differences(outputs, loss), atol=1e-9)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_the_whole_network_takes_gradients_back(activation: str) -> None:
    network = multilayer(SIZES, activation, seed=3, dtype="float64")  # type: ignore[arg-type]
    inputs = random(BATCH, INPUTS)

    def loss() -> float:
        return network.forward(inputs, labels()).loss_sum / BATCH

    loss()
    network.backward(BATCH)
    gradients = network.gradients.copy()
    np.testing.assert_allclose(gradients, differences(network.parameters, loss), atol=1e-8)


def as_torch(network: FeedForwardNetwork, activation: type[nn.Module]) -> nn.Sequential:
    """The same network with the same parameters."""
    layers: list[nn.Module] = []
    for module in network.modules:
        if not isinstance(module, Linear):
            layers.append(activation())
            continue
        layer = nn.Linear(*module.weight.value.shape, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(module.weight.value.T))
            layer.bias.copy_(torch.from_numpy(module.bias.value))
        layers.append(layer)
    return nn.Sequential(*layers)


def flat(tensors: list[torch.Tensor]) -> Values:
    """In our order, with weights (inputs, outputs)."""
    return np.concatenate([t.detach().numpy().T.reshape(-1) for t in tensors])


@pytest.mark.parametrize(("activation", "other"), [("relu", nn.ReLU), ("sigmoid", nn.Sigmoid)])
def test_twenty_steps_are_those_of_pytorch(activation: str, other: type[nn.Module]) -> None:
    network = multilayer(SIZES, activation, seed=4, dtype="float64")  # type: ignore[arg-type]
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
        assert result.loss_sum / BATCH == pytest.approx(loss.item(), abs=1e-12)
        assert result.correct == int((outputs.argmax(1) == torch.from_numpy(targets)).sum())
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
    ends = Sigmoid(3, "float32").forward(np.array([[-1e4, 0.0, 1e4]], np.float32))
    np.testing.assert_array_equal(ends, [[0.0, 0.5, 1.0]])


def test_a_rank_without_samples_has_gradients_of_zero() -> None:
    network = multilayer(SIZES, "relu", seed=0, dtype="float32")
    network.forward(np.zeros((2, INPUTS), np.float32), np.array([0, 1]))
    network.backward(2)
    assert network.gradients.any()
    result = network.forward(np.zeros((0, INPUTS), np.float32), np.zeros(0, np.int64))
    network.backward(2)
    assert result.loss_sum == 0
    assert not network.gradients.any()


def test_layers_of_one_shape_begin_differently_and_every_time_the_same() -> None:
    network, again = (multilayer((8, 8, 8, 8), "relu", seed=5, dtype="float64") for _ in range(2))
    first, second, third = (m.weight.value for m in network.modules if isinstance(m, Linear))
    assert not np.allclose(first, second)
    assert not np.allclose(second, third)
    assert np.array_equal(network.parameters, again.parameters)
    other = multilayer((8, 8, 8, 8), "relu", seed=6, dtype="float64")
    assert not np.allclose(network.parameters, other.parameters)
    bound = 8**-0.5
    assert 0.9 * bound < np.abs(network.parameters).max() <= bound


def test_single_precision_begins_with_the_rounded_weights() -> None:
    double, single = (multilayer(SIZES, "relu", seed=0, dtype=d) for d in ("float64", "float32"))
    assert single.parameters.dtype == np.float32
    np.testing.assert_array_equal(single.parameters, double.parameters.astype(np.float32))


def test_parameters_and_gradients_are_views_of_one_vector() -> None:
    network = multilayer(SIZES, "relu", seed=0, dtype="float64")
    parameters = [p for module in network.modules for p in module.parameters]
    assert sum(p.value.size for p in parameters) == network.parameters.size == 48 + 35 + 24
    network.parameters[...], network.gradients[...] = 1, 2
    assert all((p.value == 1).all() and (p.gradient == 2).all() for p in parameters)
