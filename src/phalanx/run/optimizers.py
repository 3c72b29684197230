"""Checks of the optimizers that a program made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.optim import optimizer as torch_optim

from phalanx.errors import UserError


def check_optimizers(model: nn.Module, optimizers: Mapping[str, Optimizer]) -> None:
    """Raise UserError when the optimizers do not hold each trained parameter of the model once, or
    hold others.

    optimizers: by name, "" for the only one.
    """
    if not optimizers:
        raise UserError("optimizer is an empty mapping: give at least one optimizer")
    for name, optimizer in optimizers.items():
        _check_kind(name, optimizer)
    names = {id(p): name for name, p in model.named_parameters()}
    held: dict[int, str] = {}
    for name, optimizer in optimizers.items():
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if foreign := len(own - names.keys()):
            raise UserError(
                f"the optimizer holds {foreign} tensors that are no parameters of the model: make "
                "it of model.parameters(), after the model was moved or replaced"
            )
        if twice := [number for number in names if number in own and number in held]:
            raise UserError(
                f"the optimizers {held[twice[0]]!r} and {name!r} both hold {names[twice[0]]}: give "
                "each parameter to one"
            )
        held |= dict.fromkeys(own, name)
    trained = {name: id(p) for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, number in trained.items() if number not in held]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"the optimizer does not hold {missing[0]}{more}: give it all "
            "parameters that require a gradient, or freeze the others by requires_grad_(False)"
        )


def check_step_hooks(optimizers: Iterable[Optimizer], known: Callable[..., None]) -> None:
    """Raise UserError for a step hook of the program, but for `known`, where the update is divided
    among the ranks."""
    of_all = torch_optim._global_optimizer_pre_hooks, torch_optim._global_optimizer_post_hooks
    for own in optimizers:
        for hooks in (own._optimizer_step_pre_hooks, own._optimizer_step_post_hooks, *of_all):
            hook: Any
            for hook in hooks.values():
                if hook != known:
                    name = getattr(hook, "__qualname__", type(hook).__name__)
                    raise UserError(
                        f'the optimizer has a step hook ({name}), and strategy="shared" and "zero" '
                        "divide the update among the ranks: none could call it with all gradients; "
                        'take strategy="mpi"'
                    )


def check_alternate(
    optimizers: Mapping[str, Optimizer], alternate: Sequence[str], compress: str
) -> tuple[str, ...]:
    """Return the names of the optimizers that the steps train in turn; none: each step all.

    Raises: UserError where they are not those of several optimizers, or a compressor would carry
            what is left of one's gradients into the step of another.
    """
    if isinstance(alternate, str) or not all(isinstance(name, str) for name in alternate):
        raise UserError(f"alternate={alternate!r} is no sequence of names of optimizers")
    if not alternate:
        return ()
    given = ", ".join(map(repr, optimizers))
    if unknown := [name for name in alternate if name not in optimizers]:
        raise UserError(f"alternate: {unknown[0]!r} is none of the optimizers {given}")
    if never := [name for name in optimizers if name not in alternate]:
        raise UserError(f"alternate={tuple(alternate)!r} never trains {never[0]!r}: name each")
    if compress != "none":
        raise UserError(f'alternate= and compress="{compress}" do not go together: leave one out')
    return tuple(alternate)


def _check_kind(name: str, optimizer: object) -> None:
    which = f"optimizer {name!r}" if name else "optimizer"
    if not isinstance(optimizer, Optimizer):
        raise UserError(
            f"{which} is of type {type(optimizer).__name__}: give an optimizer of torch.optim, or "
            "a mapping of names to them"
        )
    if isinstance(optimizer, LBFGS):
        raise UserError(
            f"{which} is LBFGS, which computes the loss several times a step by a closure, and a "
            "run computes it once: train by DistributedDataParallel on backend mpi, with a closure "
            "that returns the mean of the ranks' losses, or take another optimizer"
        )
    if isinstance(optimizer, SparseAdam):
        raise UserError(
            f"{which} is SparseAdam, for sparse gradients, and sums over ranks are dense: take Adam"
        )
