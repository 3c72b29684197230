"""Construction of the optimizer of an update rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)

from phalanx.errors import UserError
from phalanx.gradients.optimizer_update import OptimizerConfig, OptimizerName
from phalanx.parallel.layerwise import LAMB, LARS, Squares, keep_squares

OptimizerSource = OptimizerConfig | Optimizer
"""Rule that a strategy makes its optimizer of, or the optimizer that a program has made."""


ELEMENTWISE = (
    SGD, Adam, AdamW, NAdam, RAdam, Adamax, RMSprop, Rprop, Adagrad, Adadelta, ASGD
)  # fmt: skip
"""Optimizers that update each value by itself: that of a part makes the numbers of the whole."""


FIELDS = {
    "lr": "learning_rate",
    "momentum": "momentum",
    "weight_decay": "weight_decay",
    "betas": "betas",
    "eps": "epsilon",
    "trust_coefficient": "trust_coefficient",
}
"""Fields of a rule by the names of an optimizer's options."""
_OF_ADAM = ("lr", "betas", "eps", "weight_decay")
KINDS: Mapping[OptimizerName, tuple[Callable[..., Optimizer], Sequence[str]]] = {
    "sgd": (SGD, ("lr", "momentum", "weight_decay")),
    "adam": (Adam, _OF_ADAM),
    "adamw": (AdamW, _OF_ADAM),
    "lars": (LARS, ("lr", "momentum", "weight_decay", "trust_coefficient")),
    "lamb": (LAMB, _OF_ADAM),
}
"""Optimizers, and the options that a rule decides, by the names of rules."""


class JointOptimizer(Optimizer):
    """Several optimizers of different parameters that step together; one none of whose parameters
    has a gradient does not."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        # Not the base's: it would make groups of its own, with defaults.
        self.optimizers = list(optimizers)
        self.defaults: dict[str, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Groups of all of them, which take changes."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        """State of all of them by parameter: entries take changes, their dictionary does not."""
        return {
            parameter: optimizer.state[parameter]
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are computed before"
        for optimizer in self.optimizers:
            if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
                optimizer.step()


def rule_of(source: OptimizerSource) -> OptimizerConfig | None:
    """Return the rule of an optimizer of PyTorch; None of any other, and where parameter groups or
    options go beyond a rule."""
    if isinstance(source, OptimizerConfig):
        return source
    if isinstance(source, JointOptimizer):
        return None
    options = source.param_groups[0]
    beyond = ("maximize", "amsgrad", "dampening", "nesterov")
    if len(source.param_groups) > 1 or any(map(options.get, beyond)):
        return None
    for name, (kind, keys) in KINDS.items():
        if type(source) is kind:  # not what a program derives
            values = {FIELDS[key]: options[key] for key in keys}
            values["learning_rate"] = float(options["lr"])
            is_decoupled = options.get("decoupled_weight_decay")
            return OptimizerConfig(name="adamw" if is_decoupled else name, **values)
    return None


def optimizer_of_parts(
    optimizer: Optimizer, trained: Sequence[nn.Parameter], *, squares: Squares
) -> Optimizer:
    """Return a program's optimizer where ranks will give it parts of the parameters.

    trained: the whole ones, in the model's order. squares: of them, for `LARS` and `LAMB`.
    Raises: UserError for one that may look at whole parameters.
    """
    if isinstance(optimizer, (LARS, LAMB)):
        held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if len(optimizer.param_groups) > 1 or list(map(id, held)) != list(map(id, trained)):
            raise UserError(
                f"{type(optimizer).__name__} with sharded parameters needs one group, in the order "
                'of model.parameters(): pass that, or use strategy="mpi"'
            )
        optimizer.squares = squares
    elif type(optimizer) not in ELEMENTWISE:
        names = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        raise UserError(
            f"{type(optimizer).__name__} may need full parameters, but each rank has a shard: use "
            f'one of {names}, LARS or LAMB, or use strategy="mpi"'
        )
    return optimizer


def torch_optimizer(
    rule: OptimizerSource, parameters: Iterable[nn.Parameter], *, squares: Squares = keep_squares
) -> Optimizer:
    """Return the optimizer of a rule; one that a program has made is returned as it is.

    PyTorch's where it has one, fused: one kernel over all parameters, two to
    three times faster than its default.

    squares: of `lars` and `lamb`, where ranks hold parts of parameters.
    """
    if isinstance(rule, Optimizer):
        return rule
    kind, keys = KINDS[rule.name]
    values: dict[str, Any] = {key: getattr(rule, FIELDS[key]) for key in keys}
    values |= {"squares": squares} if rule.is_layerwise else {"fused": True}
    return kind(parameters, **values)
