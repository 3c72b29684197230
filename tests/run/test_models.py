"""Models of every kind train by a run as they do in a loop of PyTorch's own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

import phalanx

INPUTS, TARGETS = torch.randn(12, 4), torch.randn(12, 2)


class Watched(nn.Module):
    """Notes the type in which its layer computes; returns several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.dtypes: list[torch.dtype] = []

    def forward(self, inputs: Tensor) -> dict[str, Any]:
        outputs = self.layer(inputs)
        self.dtypes.append(outputs.dtype)
        return {"outputs": outputs, "others": (outputs.mean(), 3)}


def test_autocast_is_for_calls_of_the_model_and_ends_with_the_run() -> None:
    model = Watched()
    run = phalanx.start(
        model, SGD(model.parameters(), lr=0.1), (INPUTS, TARGETS), batch_size=4, autocast="bf16"
    )
    for batch in run:
        outputs = run.model(batch.inputs)
        assert outputs["outputs"].dtype == outputs["others"][0].dtype == torch.float32
        run.backward((outputs["outputs"] - batch.targets).square().mean())
        if batch.ends_epoch:
            run.evaluate(lambda model, inputs: model(inputs)["others"][0], INPUTS)
    assert model.layer.weight.dtype == torch.float32
    assert set(model.dtypes) == {torch.bfloat16}
    assert model(INPUTS)["outputs"].dtype == model.dtypes[-1] == torch.float32


def bare(model: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> dict[str, Tensor]:
    """Parameters after three steps of a loop of PyTorch's own, of all samples."""
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def by_run(
    model: nn.Module, loss_of: Callable[[nn.Module, Any], Tensor], **options: Any
) -> dict[str, Tensor]:
    """The same by a run, in five micro-batches a step."""
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    options = {"batch_size": 12, "epochs": 3, "micro_batches": 5, **options}
    run = phalanx.start(model, optimizer, (INPUTS.double(), TARGETS.double()), **options)
    for batch in run:
        run.backward(loss_of(run.model, batch.data))
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def squared_error(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(data[0]), data[1])


def mlp(*between: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), *between, nn.Linear(8, 2)).double()


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(
            torch.randn(4, 2, dtype=torch.complex128, generator=generator), requires_grad=True
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs.to(torch.complex128) @ self.weight).abs()


class Recomputed(nn.Module):
    """Gradient checkpointing: activations are computed again in the backward pass."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = checkpoint(self.layers, inputs, use_reentrant=False)
        return outputs


class Recurrent(nn.Module):
    """One layer for several steps: its gradient has several parts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.head = nn.Linear(4, 4).double(), nn.Linear(4, 2).double()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        for _ in range(3):
            inputs = torch.tanh(self.layer(inputs))
        outputs: Tensor = self.head(inputs)
        return outputs


@pytest.mark.parametrize(
    "make",
    [Complex, Recurrent, lambda: torch.compile(mlp(), backend="eager")],
    ids=["complex", "recurrent", "compiled"],
)
def test_a_run_trains_as_a_loop_of_pytorch(make: Callable[[], nn.Module]) -> None:
    expected = bare(make(), lambda model: squared_error(model, (INPUTS.double(), TARGETS.double())))
    found = by_run(make(), squared_error)
    assert found.keys() == expected.keys()
    assert all((found[name] - value).abs().max() < 1e-12 for name, value in expected.items())


def test_checkpointed_layers_draw_the_same_random_numbers_again() -> None:
    expected = by_run(mlp(nn.Dropout(0.5)), squared_error)
    found = by_run(Recomputed(mlp(nn.Dropout(0.5))), squared_error)
    assert all(torch.equal(found["layers." + name], value) for name, value in expected.items())


class Words(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, **options)
        self.head = nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Words(sparse=True), r"table.weight has sparse gradients .*Embedding\(sparse=True\)"),
        (mlp(nn.SyncBatchNorm(8)), "SyncBatchNorm, .* leave micro_batches= out, or use BatchNorm"),
    ],
)
def test_models_that_are_refused(model: nn.Module, text: str) -> None:
    with pytest.raises(phalanx.UserError, match=text):
        phalanx.start(model, SGD(model.parameters(), lr=0.1), INPUTS, batch_size=4, micro_batches=2)


def test_gradients_of_complex_parameters_are_not_compressed() -> None:
    model = Complex()
    with pytest.raises(phalanx.UserError, match="for real gradients, but weight is complex"):
        phalanx.start(
            model,
            SGD(model.parameters(), lr=0.1),
            INPUTS,
            batch_size=4,
            strategy_options={"compress": "fp16"},
        )


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"affine": False}])
def test_synchronized_batch_norm_is_batch_norm_of_the_global_batch(options: Any) -> None:
    plain, synchronized = nn.BatchNorm1d(8, **options), nn.SyncBatchNorm(8, **options)
    expected = by_run(mlp(plain), squared_error, micro_batches=1, batch_size=7)
    found = by_run(mlp(synchronized), squared_error, micro_batches=1, batch_size=7)
    assert all((found[name] - value).abs().max() < 1e-12 for name, value in expected.items())
    for name, value in plain.named_buffers():
        assert (synchronized.get_buffer(name) - value).abs().max() < 1e-12
    inputs = torch.randn(5, 8).double()
    difference = synchronized.eval()(inputs) - plain.eval()(inputs)
    assert difference.abs().max() < 1e-12
    assert "forward" not in vars(synchronized)


class Branches(nn.Module):
    """Uses one of its heads, by the number of the step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.heads = nn.ModuleList(nn.Linear(4, 2).double() for _ in range(2))

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        outputs: Tensor = self.heads[step % 2](inputs)
        return outputs


def test_a_step_that_does_not_reach_a_parameter_gives_it_a_gradient_of_zeros() -> None:
    """Several ranks did so, one process left it out: with momentum or decay they disagreed."""
    model, expected = Branches(), Branches()
    optimizer, plain = (AdamW(m.parameters(), lr=0.1, weight_decay=0.3) for m in (model, expected))
    run = phalanx.start(
        model, optimizer, (INPUTS.double(), TARGETS.double()), batch_size=12, epochs=4
    )
    for batch in run:
        run.backward(F.mse_loss(run.model(batch.inputs, batch.step), batch.targets))
        for parameter in expected.parameters():
            parameter.grad = torch.zeros_like(parameter)
        F.mse_loss(expected(INPUTS.double(), batch.step), TARGETS.double()).backward()
        plain.step()
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert (parameter - other).abs().max() < 1e-12


def test_a_layer_that_is_frozen_in_the_loop_stays_as_it_is() -> None:
    model = mlp()
    optimizer = AdamW(model.parameters(), lr=0.1, weight_decay=0.3)
    run = phalanx.start(
        model, optimizer, (INPUTS.double(), TARGETS.double()), batch_size=12, epochs=4
    )
    for batch in run:
        run.backward(squared_error(run.model, batch.data))
        if batch.step == 1:
            frozen = model.get_parameter("0.weight").detach().clone()
            model.get_submodule("0").requires_grad_(False)
    assert torch.equal(model.get_parameter("0.weight"), frozen)


def test_a_micro_batch_that_counts_nothing_adds_nothing() -> None:
    """Its mean over no tokens is nan, and 0 · nan ended the run."""

    def train(micro_batches: int) -> nn.Module:
        model = mlp()
        optimizer = SGD(model.parameters(), lr=0.1)
        data = (INPUTS.double(), TARGETS.double())
        run = phalanx.start(model, optimizer, data, batch_size=12, micro_batches=micro_batches)
        for batch in run:
            counted = batch.inputs[:, 0] > 0.5
            loss = F.mse_loss(run.model(batch.inputs)[counted], batch.targets[counted])
            run.backward(loss, weight=int(counted.sum()))
        return model

    whole, parts = train(1).state_dict(), train(12).state_dict()
    assert all((parts[name] - value).abs().max() < 1e-12 for name, value in whole.items())


def test_a_sparse_gradient_of_a_function_is_refused_by_name() -> None:
    table = nn.Linear(3, 5, bias=False)
    run = phalanx.start(table, SGD(table.parameters(), lr=0.1), torch.arange(4), batch_size=4)
    with pytest.raises(phalanx.UserError, match="weight has a sparse gradient"):
        for batch in run:
            run.backward(F.embedding(batch.inputs, table.weight, sparse=True).mean())
