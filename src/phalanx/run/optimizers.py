"""A program's model, parameters, optimizers and schedulers: their checks, and the parameters that a
step reaches or does not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.optim import optimizer as torch_optim
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from phalanx.errors import UserError
from phalanx.parallel.optimizer import JointOptimizer, rule_of
from phalanx.parallel.strategy import Strategy


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
                f"the optimizer holds {foreign} tensors that are not parameters of the model: "
                "create it from model.parameters() after moving or replacing the model"
            )
        if twice := [number for number in names if number in own and number in held]:
            raise UserError(
                f"the optimizers {held[twice[0]]!r} and {name!r} both hold {names[twice[0]]}: each "
                "parameter belongs to one optimizer"
            )
        held |= dict.fromkeys(own, name)
    trained = {name: id(p) for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, number in trained.items() if number not in held]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"the optimizer does not hold {missing[0]}{more}: pass it all parameters that require "
            "a gradient, or freeze the others by requires_grad_(False)"
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
                        "divide the update among the ranks, so no rank could call the hook with "
                        'all gradients: use strategy="mpi"'
                    )


def check_alternate(
    optimizers: Mapping[str, Optimizer], alternate: Sequence[str], compress: str
) -> tuple[str, ...]:
    """Return the names of the optimizers that the steps train in turn; none: each step all.

    Raises: UserError where they are not those of several optimizers, or a compressor would carry
            what is left of one's gradients into the step of another.
    """
    if not alternate:
        return ()
    given = ", ".join(map(repr, optimizers))
    if unknown := [name for name in alternate if name not in optimizers]:
        raise UserError(f"alternate: {unknown[0]!r} is not one of the optimizers {given}")
    if never := [name for name in optimizers if name not in alternate]:
        raise UserError(f"alternate={tuple(alternate)!r} never trains {never[0]!r}: name each")
    if compress != "none":
        raise UserError(f'alternate= and compress="{compress}" exclude each other: leave one out')
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
            f"{which} is LBFGS, which computes the loss several times per step by a closure, but a "
            "run computes it once: use DistributedDataParallel on backend mpi, with a closure that "
            "returns the mean of the ranks' losses, or use another optimizer"
        )
    if isinstance(optimizer, SparseAdam):
        raise UserError(
            f"{which} is SparseAdam, for sparse gradients, but sums over ranks are dense: use Adam"
        )


WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DataParallel"}
"""Classes of PyTorch, and ours, that divide a training among ranks or devices."""


def check_model(model: object) -> None:
    """Raises: UserError for what no run could train."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model is of type {type(model).__name__}: give a torch.nn.Module")
    for name, module in model.named_modules():
        bases = [each for each in type(module).__mro__ if each.__name__ in WRAPPERS]
        if any(base.__module__.startswith(("torch.", "phalanx.")) for base in bases):
            raise UserError(
                f"{name or 'model'} is wrapped in {bases[0].__name__}, which divides its training "
                "among ranks itself: give the module within it"
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise UserError(
                f"{name}.weight has sparse gradients (nn.{type(module).__name__}(sparse=True)), "
                "but sums over ranks are dense: leave sparse=True out"
            )


def schedulers_of(scheduler: object, optimizers: Mapping[str, Optimizer]) -> list[LRScheduler]:
    """Return the schedulers, each of which the run steps after every update.

    Raises: UserError for what is none, wants a metric, or is of another optimizer.
    """
    given: list[Any] = list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler]
    for each in given:
        kind = type(each).__name__
        if isinstance(each, ReduceLROnPlateau):
            raise UserError(
                f"scheduler is {kind}, whose step takes a metric: leave it out, and call "
                "scheduler.step(run.evaluate(…)) yourself, on every rank, after an epoch"
            )
        if not isinstance(each, LRScheduler):
            raise UserError(
                f"scheduler is of type {kind}: give one of torch.optim.lr_scheduler, or a list of "
                "them"
            )
        if all(each.optimizer is not own for own in optimizers.values()):
            raise UserError(
                f"scheduler {kind} belongs to a different optimizer from that of phalanx.start: "
                "create it for that one"
            )
    return given


class FollowedRate:
    """Learning rate of a program's optimizer, which the strategy's own follows where it has one."""

    def __init__(self, strategy: Strategy, optimizer: Optimizer) -> None:
        self._strategy, self._optimizer = strategy, optimizer
        self._rule = rule_of(optimizer)

    def follow(self) -> None:
        """Take the rate of now. Raises: UserError when a scheduler has changed anything else."""
        given, own = self._optimizer, self._strategy.optimizer
        if own is given or isinstance(own, JointOptimizer):
            return
        rate, rule = given.param_groups[0]["lr"], rule_of(given)
        if self._rule is None or rule != replace(self._rule, learning_rate=float(rate)):
            raise UserError(
                f"{type(self._strategy).__name__} follows only the learning rate of the optimizer, "
                'but other options changed: use strategy="mpi"'
            )
        own.param_groups[0]["lr"] = rate
        given._opt_called = True  # type: ignore[attr-defined]  # else schedulers warn: too late


class StepSchedulers:
    """The schedulers of a run, which follow each update; and learning rates, which stay as they are
    within a step."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizers: Mapping[str, Optimizer]
    ) -> None:
        self._schedulers, self._optimizers = schedulers, optimizers
        self._left_at: list[int] | None = None
        """Steps of the schedulers after the last update; None: they may have become others."""
        self._rates: list[float] = []
        """Learning rates at the step's last backward pass; empty: it has had none."""

    def step(self, due: Collection[str]) -> None:
        """Follow the update of the optimizers with these names."""
        for scheduler in self._schedulers:
            if any(self._optimizers[name] is scheduler.optimizer for name in due):
                scheduler.step()
        self._left_at = self._num_steps()

    def resume(self) -> None:
        """Let the schedulers have another state, which a checkpoint or a peer has given."""
        self._left_at = None

    def begin_step(self) -> None:
        """Raises: UserError when the program has stepped a scheduler of the run."""
        if self._left_at not in (None, self._num_steps()):
            raise UserError(
                "scheduler.step() was called for the scheduler of phalanx.start, which would step "
                "twice: leave the call out, since the run steps it after each update"
            )
        self._rates = []

    def note(self) -> None:
        """Note the rates after a micro-batch that is not the step's last: a loop may have set them
        for the step before its backward pass."""
        self._rates = self._rates_now()

    def check(self) -> None:
        """Raises: UserError when a rate has changed since then, before the next micro-batch."""
        if self._rates and self._rates != self._rates_now():
            raise UserError(
                "a learning rate was changed between two micro-batches of a step, as by "
                "scheduler.step() after each: give scheduler= to phalanx.start, or step it if "
                "batch.ends_step"
            )

    def _num_steps(self) -> list[int]:
        inner = (getattr(each, "_schedulers", (each,)) for each in self._schedulers)
        return [getattr(each, "last_epoch", 0) for some in inner for each in some]

    def _rates_now(self) -> list[float]:
        own = self._optimizers.values()
        return [float(group["lr"]) for each in own for group in each.param_groups if "lr" in group]


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
                "an optimizer got parameters after phalanx.start, but ranks only sum gradients of "
                "those that it had before: start another run for the new ones"
            )
        for name, parameter in self._frozen:
            if parameter.grad is not None and parameter.requires_grad:
                raise UserError(
                    f"{name} was frozen when phalanx.start was called, so the ranks do not sum its "
                    "gradient: start another run after unfreezing it"
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
                f"{name} has a sparse gradient, but sums over ranks are dense: leave sparse=True "
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
