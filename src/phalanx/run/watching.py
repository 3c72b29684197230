"""Runs that `phalanx check` watches: some steps of a program, which writes nothing of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from phalanx.checkpoints.checkpoint import bytes_of
from phalanx.parallel.step import StepResult
from phalanx.records.divergence import recorded_loss
from phalanx.records.watched import (
    CHECK_SETUP,
    CheckSetup,
    TensorState,
    WatchedMetrics,
    WatchedStart,
    WatchedStep,
    watched_file,
    write_watched,
)
from phalanx.run.batch import MicroBatch
from phalanx.run.certificate import MASK, sum_of_words
from phalanx.run.feed import Feed, MappedFeed
from phalanx.run.randomness import are_used
from phalanx.torch_backend.torch_patches import keep_dropped

P = ParamSpec("P")
R = TypeVar("R")

WITHOUT = (
    *("checkpoint_dir", "checkpoints", "resume"),
    *("run_dir", "records", "device", "strategy_options", "autocast"),
)
"""Arguments of `phalanx.start` that write, or that make other numbers on purpose."""
REPLACED_STRATEGIES = ("local", "gloo", "zero")
CHUNK = 2**16
"""Length of the vector that parameters are multiplied by."""


def read_check_setup(environ: Mapping[str, str]) -> CheckSetup | None:
    """Return how this process is watched; None: nobody does."""
    text = environ.get(CHECK_SETUP)
    return None if text is None else msgspec.json.decode(text, type=CheckSetup)


def checkable(start: Callable[P, R]) -> Callable[P, R]:
    """Have `phalanx.start` make the steps of a check, where the environment asks for them."""

    @wraps(start)
    def begin(*args: P.args, **kwargs: P.kwargs) -> R:
        setup = read_check_setup(os.environ)
        if setup is not None:
            _replace_arguments(setup, kwargs)
            model = args[0] if args else kwargs.get("model")
            if setup.is_double and isinstance(model, nn.Module):
                model.double()
        return start(*args, **kwargs)

    return begin


def _replace_arguments(setup: CheckSetup, given: dict[str, Any]) -> None:
    for name in WITHOUT:
        given.pop(name, None)
    steps = given.get("steps")
    given["steps"] = min(steps, setup.steps) if type(steps) is int else setup.steps
    if given.get("strategy") in REPLACED_STRATEGIES:
        del given["strategy"]
    if not (given.get("micro_batches") or given.get("bitwise")):
        given["micro_batches"] = setup.micro_batches


class ProgramWatch:
    """Writes what a rank computes, step by step; layers drop nothing out meanwhile."""

    def __init__(
        self,
        setup: CheckSetup,
        rank: int,
        model: nn.Module,
        optimizers: Mapping[str, Optimizer],
        *,
        micro_batches: int | None,
        is_sharded: bool,
    ) -> None:
        """model: with the parameters of the first step. micro_batches: that were asked for."""
        self._setup, self._optimizers = setup, optimizers
        self._path = watched_file(Path(setup.folder), rank)
        self._parameters = dict(model.named_parameters())
        self._first = [p.detach().clone() for p in self._parameters.values()]
        self._data: dict[int, int] = {}
        self._global_samples = 0
        _drop_nothing(model)
        start = WatchedStart(
            parameters=_states(self._parameters),
            batch_norm=[n for n, m in model.named_modules() if _normalises_batch(m)],
            has_fixed_cut=micro_batches is not None and setup.micro_batches is None,
            is_sharded=is_sharded,
        )
        write_watched(self._path, start)

    def follow(self, feed: Feed) -> Feed:
        """Return the feed, whose data are noted."""
        return MappedFeed(feed, self._watched)

    def _watched(self, batch: MicroBatch) -> MicroBatch:
        """Return the micro-batch, noted, as float64 where the check computes so."""
        watched = replace(batch, data=doubled(batch.data)) if self._setup.is_double else batch
        self._note(watched)
        return watched

    def end_step(self, step: int, result: StepResult) -> None:
        """Write a step that was just made."""
        changes = {
            name: parameter.detach() - first
            for (name, parameter), first in zip(self._parameters.items(), self._first, strict=True)
        }
        line = WatchedStep(
            step=step,
            loss_sum=recorded_loss(result.loss_sum),
            global_samples=self._global_samples,
            data=self._data,
            rates=[float(g["lr"]) for each in self._optimizers.values() for g in each.param_groups],
            draws=are_used(),
            keeps_gradient=self._kept_gradient(),
            changes=_states(changes),
        )
        write_watched(self._path, line)
        self._data = {}

    def add_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Write what the program has logged."""
        known = {name: recorded_loss(value) for name, value in values.items()}
        write_watched(self._path, WatchedMetrics(step=step, values=known))

    def _note(self, batch: MicroBatch) -> None:
        self._global_samples = batch.global_samples
        if batch.num_samples:
            self._data[batch.number] = sum_of(batch.data)

    def _kept_gradient(self) -> str:
        """Return the first parameter whose gradient its optimizer keeps without a copy."""
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        for optimizer in self._optimizers.values():
            for parameter, state in optimizer.state.items():
                place = None if parameter.grad is None else parameter.grad.data_ptr()
                values = state.values() if isinstance(state, dict) else ()
                if any(isinstance(v, Tensor) and v.data_ptr() == place for v in values):
                    return names[id(parameter)]
        return ""


def doubled(data: Any) -> Any:
    """Return a batch with its numbers of floating point as float64."""

    def double(value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.double() if is_float else value

    return tree_map(double, data)


def sum_of(data: Any) -> int:
    """Return the sum of the words of a batch, modulo 2⁶⁴; those of its parts add up to it."""
    return sum(map(_sum_of_part, tree_leaves(data))) & MASK


def _sum_of_part(part: Any) -> int:
    match part:
        case Tensor() if part.is_complex():
            return _sum_of_part(torch.view_as_real(part))
        case Tensor():
            wide = part.double() if part.is_floating_point() else part.long()
            return sum_of_words(bytes_of(wide.contiguous()))
        case np.ndarray() if part.dtype.kind in "biuf":
            return _sum_of_part(torch.from_numpy(np.ascontiguousarray(part)))
        case bool() | int() | float():
            return _sum_of_part(torch.tensor(part))
        case _:
            return sum_of(vars(part)) if hasattr(part, "__dict__") else 0


def _states(tensors: Mapping[str, Tensor]) -> list[TensorState]:
    weights = torch.arange(1, CHUNK + 1, dtype=torch.float64).cos()
    states = []
    for name, tensor in tensors.items():
        flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        parts = flat.detach().double().flatten().split(CHUNK)
        product = sum(float(part @ weights[: len(part)]) for part in parts)
        norm = sum(float(part @ part) for part in parts) ** 0.5
        states.append(TensorState(name, recorded_loss(norm), recorded_loss(product)))
    return states


def _normalises_batch(module: nn.Module) -> bool:
    is_synchronized = isinstance(module, nn.SyncBatchNorm)
    return isinstance(module, _BatchNorm) and not is_synchronized and module.training


def _drop_nothing(model: nn.Module) -> None:
    """Let dropout keep everything: random numbers belong to micro-batches, of which another number
    of ranks makes others."""
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            module.dropout = 0.0
    keep_dropped(F)
