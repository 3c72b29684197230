"""Costs of models part by part, and the same parts as strategies make them."""

import copy
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from phalanx.models.cnn import CNN
from phalanx.models.gpt import GPT
from phalanx.models.mlp import MLP
from phalanx.models.options import DataShape
from phalanx.models.resnet import ResNet
from phalanx.parallel.local_shards import parameter_spec
from phalanx.parallel.program_costs import ReadyGradients, SavedTensors, measure_costs
from phalanx.parallel.tensor import split_dims, split_layers, tensor_plan_of

TEXT, IMAGES = DataShape(inputs=(8,), num_classes=11), DataShape()


class VocabularyParallel(nn.Sequential):
    """Embeddings that are split."""

    parallelize_plan = {"0": "row", "1": "column", "2": "row"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 4))


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    "model", [MLP(width=8), GPT(width=8, layers=1, heads=2, shape=TEXT), VocabularyParallel()]
)
def test_split_dims_are_those_by_which_layers_are_split(model: nn.Module) -> None:
    table = tensor_plan_of(model)
    dims = {name: split_dims(model, table).get(p) for name, p in model.named_parameters()}
    split = copy.deepcopy(model)
    split_layers(split, tensor_plan_of(split), init_device_mesh("cpu", (1,)))
    assert dims == {name: parameter_spec(p).split for name, p in split.named_parameters()}
    assert set(dims.values()) == {None, 0, 1}


def test_layers_and_units_of_a_chain() -> None:
    model = MLP(width=8)
    found = measure_costs(model, torch.rand(64, 1, 28, 28))
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert list(layers) == ["flatten", "hidden1", "relu1", "hidden2", "relu2", "output"]
    first = layers["hidden1"]
    assert (first["parameter_bytes"], first["output_bytes"]) == (4 * (784 * 8 + 8), 32)
    assert [times["samples"] for times in first["times"]] == [1, 8, 64]
    assert [times["input_s"] for times in first["times"]] == [0, 0, 0], "of the data"
    assert all(times["weight_s"] > 0 for times in first["times"])
    second = layers["hidden2"]["times"][-1]
    assert min(second["forward_s"], second["input_s"], second["weight_s"]) > 0
    assert layers["relu1"]["times"][-1]["weight_s"] == 0
    # Inputs of linear layers, which are the outputs of the others; a storage counts once.
    saved = [layer["saved_bytes"] for layer in found["layers"]]
    assert saved == [0, 4 * 784, 4 * 8, 0, 4 * 4, 0]
    assert list(found["units"]) == ["hidden1", "hidden2", "output"]
    assert [spec.split for spec in found["units"]["hidden1"]] == [0, 0]
    assert found["split"].messages["hidden2"].all_reduces == 1
    assert all(parameter.grad is None for parameter in model.parameters())


class Pair(nn.Module):
    def forward(self, x: Tensor | tuple[Tensor, Tensor]) -> Any:
        return (x, x) if isinstance(x, Tensor) else x[0]


class Scaled(nn.Module):
    """A module with a parameter of its own, and buffers that a pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.inner(x) * self.scale
        return scaled


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "inputs", "reasons"),
    [
        (
            CNN(),
            torch.rand(4, 1, 28, 28),
            {"no_layers": "CNN cannot be split", "no_split": "no pl"},
        ),
        (
            ResNet(width=4, layers=1, shape=IMAGES),
            torch.rand(4, 1, 28, 28),
            {"no_split": "no plan"},
        ),
        (nn.Sequential(nn.BatchNorm1d(3)), torch.rand(4, 3), {"no_layers": "running statistics"}),
        (nn.Sequential(nn.Linear(3, 3)), {"x": 1}, {"no_layers": "of a batch are of type dict"}),
        (nn.Sequential(nn.Linear(3, 3), Pair(), Pair()), torch.rand(4, 3), {"no_layers": "tuple"}),
        (tied(), torch.rand(4, 3), {"no_layers": "1.weight is a param", "no_units": "1.weight is"}),
        (VocabularyParallel(), torch.zeros(4, 2).long(), {"no_split": "nobody has counted"}),
    ],
)
def test_what_cannot_be_cut_says_why(
    model: nn.Module, inputs: object, reasons: dict[str, str]
) -> None:
    found = measure_costs(model, inputs)
    for field in ("layers", "units"):
        assert (field in found) is (f"no_{field}" not in found)
    for field, words in reasons.items():
        assert words in found[field]


def test_parameters_of_no_unit_and_buffers_that_stay() -> None:
    model = Scaled()
    model.pipeline_stages = ["inner"]  # type: ignore[assignment]
    before = copy.deepcopy(model.state_dict())
    found = measure_costs(model, torch.rand(4, 3))
    assert "leaves out scale" in found["no_layers"]
    assert [list(found["units"]), found["units"][""][0].shape] == [["inner", ""], (3,)]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_gradients_come_from_the_last_layer_to_the_first() -> None:
    model, clock = MLP(width=32), time.perf_counter
    ready = ReadyGradients(model)
    for _ in range(3):
        loss = model(torch.rand(8, 1, 28, 28)).sum()
        began = clock()
        loss.backward()
        ready.end_step(clock() - began)
    ready.end_step(1.0)  # a step without a backward pass of these
    found: list[dict[str, Any]] = ready.close()
    assert {each["bytes"] for each in found[-2:]} == {4 * 32, 4 * 784 * 32}
    shares = [each["ready"] for each in found]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] == 1


def test_saved_tensors_of_a_program_count_once() -> None:
    weight = torch.rand(4, 4, requires_grad=True)
    saved = SavedTensors([weight])
    with saved.counted():
        x = torch.rand(2, 4) @ weight
        x.relu().pow(2).sum()
    assert saved.num_bytes == 2 * 4 * 8, "input of the product, output of relu, which pow takes"
