"""Parameters of a program's model that a step reaches, and those that it does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.errors import UserError


class Untrained:
    """Parameters that were frozen, or in no optimizer, when the run was started: the ranks do not
    sum their gradients."""

    def __init__(self, model: nn.Module, optimizers: Mapping[str, Optimizer]) -> None:
        self._optimizers = list(optimizers.values())
        trained = {id(p) for own in self._optimizers for p in trained_by(own)}
        self._frozen = [(n, p) for n, p in model.named_parameters() if id(p) not in trained]
        self._num_held = self._count()

    def check(self) -> None:
        """Raises: UserError where one of them is trained now, on any number of ranks."""
        if self._count() != self._num_held:
            raise UserError(
                "an optimizer was given parameters after phalanx.start, and the ranks sum the "
                "gradients of those that it held then: start another run for them"
            )
        for name, parameter in self._frozen:
            if parameter.grad is not None and parameter.requires_grad:
                raise UserError(
                    f"{name} is trained now, and was frozen when phalanx.start was called: the "
                    "ranks do not sum its gradient; start another run after the change"
                )

    def _count(self) -> int:
        return sum(len(group["params"]) for own in self._optimizers for group in own.param_groups)


def trained_by(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of an optimizer that require a gradient."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [parameter for parameter in parameters if parameter.requires_grad]


def forget_others(model: nn.Module, part: nn.Module) -> None:
    """Free the tensors of a program's model that this rank does not train, so that nobody takes
    them for trained ones: they have shapes, and no values.

    part: of the model, that it trains.
    """
    kept = {id(tensor) for tensor in (*part.parameters(), *part.buffers())}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in kept:
                module._parameters[name] = nn.Parameter(
                    torch.empty_like(parameter, device="meta"), parameter.requires_grad
                )
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in kept:
                module._buffers[name] = torch.empty_like(buffer, device="meta")


def check_dense(model: nn.Module) -> None:
    """Raises: UserError for a sparse gradient, as of `F.embedding(…, sparse=True)`."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise UserError(
                f"{name} has a sparse gradient, and sums over ranks are dense: leave sparse=True "
                "out"
            )


def complete(parameters: Iterable[nn.Parameter]) -> None:
    """Give the parameters that no micro-batch of a step has reached a gradient of zeros, on one
    rank as on several, where a rank cannot know what others have reached. One that the program
    has frozen since the start is not updated at all.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if parameter.requires_grad:
            if gradient is None:
                parameter.grad = torch.zeros_like(parameter)
        elif gradient is not None and not gradient.any():
            parameter.grad = None


def nothing_of(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return a loss, 0-dim, whose gradient is zero for each of the parameters."""
    terms = [torch.view_as_real(p) if p.is_complex() else p for p in parameters]
    return torch.stack([(0 * term).sum().double() for term in terms]).sum()
