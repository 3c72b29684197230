"""A micro-batch is taken apart as a batch of PyTorch's `DataLoader` is."""

import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import phalanx

INPUTS, TARGETS = torch.randn(6, 4), torch.randn(6, 2)


def test_the_parts_are_those_of_a_data_loader() -> None:
    model = nn.Linear(4, 2)
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=6)
    run = phalanx.start(model, SGD(model.parameters(), lr=0.1), (INPUTS, TARGETS), batch_size=6)
    for inputs, targets in run:
        run.backward((run.model(inputs) - targets).square().mean())
        found = inputs.sum(), targets.sum()
    for inputs, targets in loader:
        torch.testing.assert_close(found, (inputs.sum(), targets.sum()))


def test_data_of_one_tensor_are_one_part() -> None:
    model = nn.Linear(4, 2)
    for data in (INPUTS, TensorDataset(INPUTS)):
        run = phalanx.start(model, SGD(model.parameters(), lr=0.1), data, batch_size=6)
        for (inputs,) in run:
            assert inputs.shape == (6, 4)
            run.backward(run.model(inputs).square().mean())


def halves(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = zip(*samples, strict=True)
    return torch.stack(inputs) / 2, torch.stack(targets)


def test_a_loader_brings_its_batch_size_and_reading_and_the_run_its_order() -> None:
    updated = []
    data = TensorDataset(INPUTS / 2, TARGETS)
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), 4, shuffle=True, collate_fn=halves)
    for given, options in ((data, {"batch_size": 4}), (loader, {})):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        run = phalanx.start(model, SGD(model.parameters(), lr=0.1), given, epochs=2, **options)
        for inputs, targets in run:
            run.backward((run.model(inputs) - targets).square().mean())
            if len(inputs) == 2:
                error = run.evaluate(lambda _, batch: batch[0].sum(), given, reduction="sum")
                assert abs(error - INPUTS.sum() / 2) < 1e-5
        updated.append(model.weight)
    torch.testing.assert_close(*updated)
