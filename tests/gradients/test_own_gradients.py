"""Gradients that are summed where they are, unless something else has their memory."""

import pytest
import torch
from torch import nn

from phalanx.gradients.reducer import own_gradients


def test_a_gradient_that_nothing_else_sees_is_summed_where_it_is() -> None:
    model = nn.Linear(4, 3)
    model(torch.randn(2, 4)).sum().backward()
    places = [parameter.grad.data_ptr() for parameter in model.parameters()]
    assert [own.data_ptr() for own in own_gradients(list(model.parameters()))] == places


def test_memory_that_something_else_has_is_left_alone() -> None:
    """A sum over the ranks in the memory of two gradients was summed twice, and an activation's
    gradient that a program keeps was changed on several ranks alone."""
    parameters = [nn.Parameter(torch.zeros(6)) for _ in range(7)]
    values = torch.arange(6.0)
    parameters[0].grad = parameters[1].grad = values.clone()
    whole = torch.cat([values, values])
    parameters[2].grad, parameters[3].grad = whole[:6], whole[6:]
    kept = parameters[4].grad = values.clone()
    array = kept.numpy()
    of_numpy = values.numpy().copy()
    parameters[6].grad = torch.from_numpy(of_numpy)
    h = torch.zeros(2, 3, requires_grad=True)
    (h.view(6) + parameters[5]).mul(values).sum().backward()
    held = parameters[5].grad.detach()
    before = [each.clone() for each in (whole, kept, held)]
    for own in own_gradients(parameters):
        assert torch.equal(own, values)
        own += 1  # a sum in place
    for each, value in zip((whole, torch.from_numpy(array), held), before, strict=True):
        assert torch.equal(each, value)
    assert torch.equal(parameters[1].grad, values + 1)
    assert of_numpy.tolist() == values.tolist()


def test_a_gradient_in_another_order_in_memory_gets_that_of_the_parameter() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3))
    parameter.grad = torch.arange(6.0).reshape(3, 2).t()
    (own,) = own_gradients([parameter])
    assert own.is_contiguous() and torch.equal(own, parameter.grad)


def test_every_gradient_is_copied_where_pytorch_does_not_count_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.arange(3.0)
    (own,) = own_gradients([parameter])
    assert own is not parameter.grad and torch.equal(own, parameter.grad)
