"""Runs that `phalanx plan` measures: some steps of a program, which writes nothing of its own; and
what its model costs part by part, beside them. Loaded where the environment asks for it alone."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import msgspec
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from phalanx.errors import UserError
from phalanx.parallel.program_costs import ReadyGradients, SavedTensors, measure_costs
from phalanx.parallel.step import StepResult
from phalanx.records.profiled import ProfilePlan
from phalanx.run.batch import Epoch, MicroBatch
from phalanx.run.failure import report_failures
from phalanx.run.feed import Feed, MappedFeed
from phalanx.run.options import Checkpoints
from phalanx.run.order import size_of_batches, unwrap_loader
from phalanx.run.program import ProgramRun

R = TypeVar("R")
WITHOUT = (
    *("checkpoint_dir", "checkpoints", "resume", "run_dir", "records"),
    *("strategy", "strategy_options", "device", "scheduler", "epochs"),
)
"""Arguments of `phalanx.start` that write, that are for several ranks or the whole training."""
PASSES = 8
"""Steps in which gradients are timed."""


def begin_profiled(start: Callable[..., R], plan: ProfilePlan, *words: Any, **given: Any) -> R:
    """Start a run of as many steps, after which the program ends.

    Raises: UserError for data whose batches are the program's own.
    """
    if plan.steps is None:
        return start(*words, **given)
    report_failures()
    data = words[2] if len(words) > 2 else given.get("data")
    saves = given.get("checkpoint_dir") is not None and plan.checkpoints is not None
    in_thread = given.get("checkpoints", Checkpoints()).in_thread
    given = {name: value for name, value in given.items() if name not in WITHOUT}
    if saves:
        given["checkpoint_dir"] = plan.checkpoints
        given["checkpoints"] = Checkpoints(every_steps=plan.steps // 2, in_thread=in_thread)
    steps = given.get("steps")
    given["steps"] = min(steps, plan.steps) if type(steps) is int else plan.steps
    whole = _batch_size(data, given)
    if plan.batch_size is not None:
        data, _, given["loading"] = unwrap_loader(data, whole, given.get("loading"))
        given["batch_size"] = plan.batch_size
        if micro_batches := given.get("micro_batches"):
            share = plan.batch_size / (whole or plan.batch_size)
            given["micro_batches"] = max(1, round(share * micro_batches))
    given |= zip(("model", "optimizer"), words, strict=False)
    run = start(**given | {"data": data})
    _end_program(cast(ProgramRun, run), given["steps"])
    return run


def _batch_size(data: object, given: Mapping[str, Any]) -> int | None:
    """Return the samples of the program's global batch. Raises: UserError where it makes batches
    itself, since a plan measures others."""
    what = "sharded=True" if given.get("sharded") else ""
    size: int | None = given.get("batch_size")
    if isinstance(data, DataLoader):
        sampler, is_stream = data.batch_sampler, isinstance(data.dataset, IterableDataset)
        if type(sampler) is not BatchSampler and not is_stream:
            what = f"a DataLoader with batch_sampler={type(sampler).__name__}"
        else:
            size = size_of_batches(data, size)
    if what:
        raise UserError(
            f"{what}: the program makes its batches itself, and a plan measures several sizes: "
            "give data with indices and batch_size=, or plan by a recorded run of one rank"
        )
    return size


def _end_program(run: ProgramRun, steps: int) -> None:
    """Have the run end its program with the last step, before what follows in there: no evaluation,
    no file of it."""
    epochs = type(run).epochs
    known = weakref.ref(run)  # a cycle would end its generators after the modules that they need

    def batches(run: ProgramRun, epoch: Epoch) -> Iterator[MicroBatch]:
        yield from epoch
        if run.position.step >= steps:
            _end(run)

    def ending() -> Iterator[Epoch]:
        run = known()
        assert run is not None, "its method is called"
        for epoch in epochs(run):
            yield Epoch(epoch.number, batches(run, epoch))
        _end(run)

    run.epochs = ending  # type: ignore[method-assign]


def _end(run: ProgramRun) -> NoReturn:
    run.close()
    sys.exit()


class ProgramProbe:
    """Measures what a model costs part by part, beside the first steps of its program."""

    def __init__(self, path: Path, model: nn.Module, autocast: torch.dtype | None) -> None:
        """path: of the file to be written. autocast: of the program's forward passes."""
        self._path, self._model, self._autocast = path, model, autocast
        self._costs: dict[str, Any] = {}
        self._gradients = ReadyGradients(model)
        self._saved = SavedTensors((*model.parameters(), *model.buffers()))
        self._counted = self._saved.counted()
        self._samples = self._left = 0

    def follow(self, feed: Feed) -> Feed:
        """Return the feed, by whose first batch the model is measured."""
        return MappedFeed(feed, self._see)

    def _see(self, batch: MicroBatch) -> MicroBatch:
        if not self._costs:
            dtype = self._autocast
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                self._costs = measure_costs(self._model, batch.inputs)
            self._samples, self._left = max(1, batch.num_samples), PASSES
            self._counted.__enter__()
        else:
            self._end_counting()
        return batch

    def _end_counting(self) -> None:
        """Take what the passes of the first micro-batch have kept."""
        if "saved_bytes" not in self._costs:
            self._counted.__exit__(None, None, None)
            self._costs["saved_bytes"] = self._saved.num_bytes // self._samples
            self._saved = SavedTensors(())  # kept tensors need no memory from now on

    def end_step(self, _: int, result: StepResult) -> None:
        """Time the gradients of a step that was just made, and write the file after the last."""
        self._end_counting()
        self._gradients.end_step(result.backward_s)
        self._left -= 1
        if self._left == 0:
            self._costs["gradients"] = self._gradients.close()
            self._path.write_bytes(msgspec.json.encode(self._costs))

    def add_metrics(self, *_: object) -> None:
        """Take nothing of what the program logs."""
