import pytest
import torch
from torch import nn

from phalanx.parallel.vector import flatten_parameters, views_of


def test_parameters_become_views_of_the_vector() -> None:
    model = nn.Linear(3, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    vector = flatten_parameters(list(model.parameters()))
    assert vector.tolist() == torch.cat([values.flatten() for values in before]).tolist()
    vector += 1
    for parameter, values in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, values + 1)
    assert [view.shape for view in views_of(vector, list(model.parameters()))] == [(2, 3), (2,)]


def test_other_types_are_refused() -> None:
    mixed = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, dtype=torch.float64))]
    with pytest.raises(ValueError, match=r"not of torch\.float32, torch\.float64"):
        flatten_parameters(mixed)
