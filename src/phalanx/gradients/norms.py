"""Gradient norm, clipping, and diagnosis of non-finite gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.comm.dtypes import dtype_of
from phalanx.records.divergence import NOT_FINITE

REMEDIES = "lower the learning rate, give clip_norm=, or skip such steps by bad_gradients='skip'"
CHECKED_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Types that the C kernel checks."""


def square_of(tensor: Tensor) -> float:
    """Return the sum of the squares of all values, 0 of an empty tensor.

    Not finite if and only if a value is not: a sum that overflows float32 is made again in float64.

    Cost: one reading; of values that the cache still has, a part of a percent of a step.
    """
    values = tensor.detach().reshape(-1)
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj()).reshape(-1)
    square = torch.dot(values, values).item()
    if not math.isfinite(square) and values.dtype != torch.float64:
        wide = values.double()
        square = torch.dot(wide, wide).item()
    return square


def sum_of_squares(tensors: Sequence[Tensor]) -> float:
    """Return the sum of `square_of` of all: in another order on a GPU, which is waited for once
    and not for each tensor."""
    if not tensors or all(tensor.is_cpu for tensor in tensors):
        return sum(map(square_of, tensors))
    square = _sum_at_once(tensors)
    return square if math.isfinite(square) else sum(map(square_of, tensors))


def _sum_at_once(tensors: Sequence[Tensor]) -> float:
    """Return the sum of squares; not finite where the norm of a tensor overflows its type, too."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
    norms = [torch.stack(torch._foreach_norm(group)) for group in groups.values()]
    return sum(each.double().square().sum().item() for each in norms)


def are_finite(tensors: Sequence[Tensor], module: ModuleType | None) -> bool:
    """Return whether no value is a NaN or an infinity.

    module: `kernels.compiled()`, which a caller of every step keeps.

    Cost: one reading, at the speed of the cache; a microsecond for each tensor. On a GPU, which
    computes behind the program, one wait.
    """
    # Kinds in one set, and methods by `map`: it is done in every step, for every parameter.
    kinds = {(type(each), each.dtype, each.layout, each.is_cpu) for each in tensors}
    dtype = tensors[0].dtype if tensors else None
    is_plain = dtype in CHECKED_DTYPES and kinds == {(Tensor, dtype, torch.strided, True)}
    if module is None or not (is_plain and all(map(Tensor.is_contiguous, tensors))):
        if tensors and not tensors[0].is_cpu and math.isfinite(_sum_at_once(tensors)):
            return True
        return all(
            math.isfinite(square_of(tensor)) or bool(tensor.isfinite().all()) for tensor in tensors
        )
    addresses, counts = [*map(Tensor.data_ptr, tensors)], [*map(Tensor.numel, tensors)]
    finite: bool = module.are_finite(addresses, counts, dtype_of(tensors[0].dtype).code)
    return finite


def squares_of(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of squares of each of n tensors, (n,) float64."""
    return torch.tensor([square_of(tensor) for tensor in tensors], dtype=torch.float64)


def clip_factor(norm: float, most: float) -> float:
    """Return the factor that reduces a gradient of norm `norm` to at most `most`.

    Source: Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063. PyTorch's clip_grad_norm_ adds 1e-6 to
    the norm; here the result has the norm that was asked for.
    """
    return most / norm if norm > most else 1.0


class NonFiniteGradients(NamedTuple):
    """Non-finite gradients of one rank."""

    parameter: int
    """The last non-finite one of the model, which is the first in the backward pass.
    -1: all are finite."""
    number: int
    """Number of parameters with non-finite gradients."""
    loss: float
    """Loss of the rank's samples."""


def find_nonfinite(gradients: Sequence[Tensor | None], loss: float) -> NonFiniteGradients:
    """Find non-finite gradients. gradients: of the model's parameters, in their order; None for
    none."""
    bad = numbers_of_nonfinite(gradients)
    return NonFiniteGradients(max(bad, default=-1), len(bad), loss)


def numbers_of_nonfinite(gradients: Sequence[Tensor | None]) -> list[int]:
    """Return the places of the gradients that are not finite; None: there is none."""
    return [
        number
        for number, gradient in enumerate(gradients)
        if gradient is not None and not bool(gradient.isfinite().all())
    ]


def describe_nonfinite(
    step: int, ranks: Sequence[NonFiniteGradients], summed: NonFiniteGradients, names: Sequence[str]
) -> str:
    """Describe non-finite gradients in one line: the step, the rank or ranks, and the parameter.

    ranks: in their order; summed: of the sums over them; at least one has a gradient that is not
    finite.
    """
    bad = [rank for rank, found in enumerate(ranks) if found.number]
    start = f"step {step}: {NOT_FINITE}"
    if not bad and not summed.number:
        return f"{start}, but were finite when they were computed again: a memory or message fault?"
    if not bad:
        return (
            f"{start}: they are finite on every rank, but not their sum over the ranks: "
            f"{names[summed.parameter]}{_others(summed)}"
        )
    return start + _cause(bad, ranks[bad[0]], names)


def describe_nonfinite_sums(
    step: int, losses: Sequence[float], summed: NonFiniteGradients, names: Sequence[str]
) -> str:
    """Describe sums over the ranks that are not finite, if the gradients of the ranks are no longer
    known. losses: of the ranks, in their order."""
    bad = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
    start = f"step {step}: {NOT_FINITE}"
    who = f": the loss of {_named(bad)} is {losses[bad[0]]}" if bad else ""
    return f"{start}{who}; {_origin(summed, names)}" if summed.number else f"{start}{who}"


def describe_rank_nonfinite(
    step: int, rank: int, found: NonFiniteGradients, names: Sequence[str]
) -> str:
    """Describe non-finite gradients of a rank that trains alone."""
    return f"step {step}: {NOT_FINITE}{_cause([rank], found, names)}"


def _cause(ranks: Sequence[int], found: NonFiniteGradients, names: Sequence[str]) -> str:
    """ranks: that have such gradients. found: those of the first of them."""
    is_finite, who = math.isfinite(found.loss), _named(ranks)
    start = f" on {who}" if is_finite else f": the loss of {who} is {found.loss}"
    return f"{start}; {_origin(found, names)}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _origin(found: NonFiniteGradients, names: Sequence[str]) -> str:
    return f"the backward pass first produced them at {names[found.parameter]}{_others(found)}"


def _others(found: NonFiniteGradients) -> str:
    more = found.number - 1
    return f" and {more} more parameter{'s' * (more > 1)}" if more else ""
