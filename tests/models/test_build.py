import pytest
import torch

from phalanx.data.datasets.catalog import TEXT_SHAPE
from phalanx.models.build import build_model
from phalanx.models.cnn import CNN
from phalanx.models.mlp import MLP
from phalanx.models.options import DataShape, ModelName, ModelOptions
from phalanx.models.rnn import RNN

IMAGE_MODELS: tuple[ModelName, ...] = ("mlp", "cnn", "rnn", "resnet")
WITH_NORMS: tuple[tuple[ModelName, DataShape], ...] = (
    ("resnet", DataShape(inputs=(3, 32, 32))),
    ("gpt", TEXT_SHAPE),
)


@pytest.mark.parametrize(("name", "count"), [("mlp", 235_146), ("cnn", 421_642), ("rnn", 82_186)])
def test_parameter_counts_are_those_of_the_published_study(name: str, count: int) -> None:
    assert sum(p.numel() for p in build_model(name, seed=0).parameters()) == count


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_logits_have_one_row_a_sample(name: ModelName) -> None:
    assert build_model(name, seed=0)(torch.rand(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize("name", ["mlp", "cnn", "rnn"])
def test_weights_depend_on_seed_and_name_alone(name: ModelName) -> None:
    first = build_model(name, seed=1).state_dict()
    torch.manual_seed(99)  # the global generator plays no part
    again, other = build_model(name, seed=1).state_dict(), build_model(name, seed=2).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", ["mlp", "cnn", "rnn"])
def test_weights_are_spread_as_pytorch_spreads_them(name: ModelName) -> None:
    torch.manual_seed(0)
    plain = {"mlp": MLP, "cnn": CNN, "rnn": RNN}[name]()
    for (key, ours), stock in zip(
        build_model(name, seed=0).named_parameters(), plain.parameters(), strict=True
    ):
        if ours.numel() > 1000:
            assert ours.std().item() == pytest.approx(stock.std().item(), rel=0.1), key


@pytest.mark.parametrize(("name", "shape"), WITH_NORMS)
def test_norms_start_as_nothing_and_the_rest_by_seed_and_name(
    name: ModelName, shape: DataShape
) -> None:
    first = build_model(name, seed=1, shape=shape)
    torch.manual_seed(99)
    again = build_model(name, seed=1, shape=shape).state_dict()
    other = build_model(name, seed=2, shape=shape).state_dict()
    for key, value in first.state_dict().items():
        assert torch.equal(value, again[key])
        if "norm" in key:
            assert torch.equal(value, torch.full_like(value, float(key.endswith("weight"))))
        else:
            assert not torch.equal(value, other[key])


@pytest.mark.parametrize(("name", "shape"), WITH_NORMS)
def test_a_deeper_model_starts_from_the_same_first_layers(
    name: ModelName, shape: DataShape
) -> None:
    small, deep = (
        build_model(name, seed=1, shape=shape, options=ModelOptions(layers=layers))
        for layers in (1, 2)
    )
    weights = deep.state_dict()
    assert small.state_dict().keys() < weights.keys()
    assert all(torch.equal(value, weights[key]) for key, value in small.state_dict().items())


def test_float32_weights_are_the_rounded_float64_ones() -> None:
    wide, narrow = build_model("mlp", seed=0, dtype=torch.float64), build_model("mlp", seed=0)
    for a, b in zip(wide.parameters(), narrow.parameters(), strict=True):
        assert torch.equal(a.float(), b)
