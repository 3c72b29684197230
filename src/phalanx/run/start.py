"""`phalanx.start`: a program's model, optimizer and data on all ranks that were started."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from phalanx.checkpoints.program import ProgramState
from phalanx.checkpoints.program_recipe import program_manifest
from phalanx.comm.join_world import join_world, report_binding
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.launch.detect import Launched, detect
from phalanx.parallel.mpi import MPI
from phalanx.parallel.optimizer import JointOptimizer
from phalanx.parallel.sequential import Sequential
from phalanx.parallel.shared import Shared
from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.run.checkpointing import ProgramCheckpoints, ResumeChoice
from phalanx.run.data_loader import unwrap_loader
from phalanx.run.failure import report_failures, watch
from phalanx.run.feed import IndexedFeed
from phalanx.run.micro_batches import check_number
from phalanx.run.optimizers import check_optimizers
from phalanx.run.program import ProgramOptions, ProgramRun
from phalanx.run.records import Metrics, ProgramRecords
from phalanx.run.samples import samples_of
from phalanx.run.setting import describe_data, describe_setting
from phalanx.torch_backend.rendezvous import (
    Rendezvous,
    connect_ranks,
    disconnect_ranks,
    fresh_store,
    is_without_mpi,
)
from phalanx.torch_backend.threads import share_cores

StrategyName = Literal["auto", "sequential", "mpi", "shared"]


def start(
    model: nn.Module,
    optimizer: Optimizer | Mapping[str, Optimizer],
    data: object,
    *,
    batch_size: int | None = None,
    epochs: int = 1,
    steps: int | None = None,
    micro_batches: int | None = None,
    scheduler: LRScheduler | Sequence[LRScheduler] = (),
    strategy: StrategyName = "auto",
    clip_norm: float | None = None,
    bad_gradients: Literal["stop", "skip"] = "stop",
    checkpoint_dir: Path | str | None = None,
    checkpoint_steps: int | None = None,
    resume: bool | Path | str | None = None,
    run_dir: Path | str | None = None,
    on_metrics: Metrics | None = None,
    seed: int = 0,
    loading: dict[str, Any] | None = None,
    timeout_s: float = 300.0,
) -> ProgramRun:
    """Join the ranks that a launcher started, or be the only one, and return a run to iterate.

        run = phalanx.start(model, optimizer, data, batch_size=256, epochs=10)
        for batch in run:
            loss = criterion(run.model(batch.inputs), batch.targets)
            run.backward(loss)

    Every rank gets rank 0's parameters and buffers. With a fixed `batch_size` every number of ranks
    makes the same updates, up to rounding.

    model: any module; frozen and unused parameters are fine.
    optimizer: any, of its parameters; or several by name, each of parameters of its own
        (`run.backward(loss, optimizer=name)`), all of which step at the end of a global batch.
    data: tensors or NumPy arrays, a tuple or dictionary of them, an Arrow table, a folder of
        `phalanx data pack`, a map-style `Dataset`, or a `DataLoader`
        of one, which brings its batch size and reading with it.
    batch_size: samples of the global batch, over all ranks.
    steps: updates after which the run ends, within the epochs.
    micro_batches: into which every global batch is cut, whatever the number of ranks; each has
        random numbers of its own, so that dropout agrees, too. None: one a rank.
    scheduler: of the learning rate, or several; each makes a step after every update.
    strategy: auto: `mpi` on ranks that a launcher started, else `sequential`.
    seed: of the order of samples and of PyTorch's generators, which are seeded anew for each
        micro-batch.
    clip_norm: largest norm of the gradients. bad_gradients: of steps that are not finite.
    checkpoint_dir: folder of checkpoints, written after each epoch and at the end of the run; None
        writes none. checkpoint_steps: steps of an epoch after which one is written, too.
    resume: True goes on from the newest complete checkpoint in `checkpoint_dir`, and begins anew
        where there is none; a path from that checkpoint, or from the newest one in that folder.
        The number of ranks and the strategy may be others.
    run_dir: new folder for records, which `phalanx report` draws. None: that of the variable
        PHALANX_RUN_DIR, or none are written.
    on_metrics: called on rank 0 with the number of the update and what `run.log` is given.
    loading: arguments for PyTorch's `DataLoader` of a `Dataset`: num_workers, collate_fn, ….
    timeout_s: longest wait for a peer.

    Raises: UserError for what the program or the user can mend.
    """
    report_failures()
    data, batch_size, loading = unwrap_loader(data, batch_size, loading)
    launched = detect(os.environ)
    num_ranks = launched.world_size if launched else 1
    _check_counts(
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        micro_batches=micro_batches,
        checkpoint_steps=checkpoint_steps,
    )
    _check_gradient_options(clip_norm, bad_gradients)
    optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"": optimizer}
    check_optimizers(model, optimizers)
    samples = samples_of(data, loading)
    if not len(samples):
        raise UserError("data has no samples")
    batch_size = min(batch_size, len(samples))
    number = check_number(micro_batches, batch_size=batch_size, num_ranks=num_ranks)
    schedulers = [scheduler] if isinstance(scheduler, LRScheduler) else list(scheduler)
    manifest = program_manifest(
        model,
        optimizers,
        schedulers,
        data=describe_data(data),
        num_samples=len(samples),
        batch_size=batch_size,
        seed=seed,
        options={"micro_batches": micro_batches, "clip_norm": clip_norm},
    )
    saving = ResumeChoice.find(checkpoint_dir, checkpoint_steps, resume)
    checkpoints = ProgramCheckpoints(saving, manifest, model)
    step_options = StepOptions(clip_norm=clip_norm, skips_nonfinite=bad_gradients == "skip")
    if launched is not None:
        share_cores(launched.local_world_size or 1)
    chosen, leave = _make_strategy(strategy, launched, step_options, timeout_s)
    if isinstance(chosen, Shared) and any(own.state for own in optimizers.values()):
        raise UserError(
            'strategy="shared" keeps the state of the optimizer itself, and this one has made '
            'steps already: take strategy="mpi"'
        )
    own = list(optimizers.values())
    chosen.prepare(model, own[0] if len(own) == 1 else JointOptimizer(own))
    state = ProgramState(strategy=chosen, optimizers=optimizers, schedulers=schedulers)
    loop_options = checkpoints.begin(state, epochs=epochs, steps=steps)
    setting = describe_setting(
        model,
        optimizers,
        data,
        chosen,
        name=type(chosen).__name__.lower(),
        threads=torch.get_num_threads(),
        loop=loop_options,
        step=step_options,
        micro_batches=micro_batches,
        seed=seed,
    )
    records = ProgramRecords.begin(
        chosen,
        run_dir,
        setting,
        on_metrics=on_metrics,
        options=loop_options,
        num_samples=len(samples),
    )
    records.recorder.start(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        train_samples=len(samples),
        expected=chosen.expected(batch_size) if chosen.knows_rule else None,
    )
    feed = IndexedFeed(
        samples,
        batch_size=batch_size,
        micro_batches=number,
        seed=seed,
        rank=chosen.rank,
        num_ranks=chosen.size,
    )
    checkpoints.record_in(records.recorder)
    options = ProgramOptions(seed=seed, schedulers=schedulers, loading=loading)
    run = ProgramRun(chosen, optimizers, feed, records, checkpoints, loop_options, options, leave)
    watch(records)
    return run


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and (type(count) is not int or count < 1):
            raise UserError(f"{name}={count!r} is no whole number from 1")


def _check_gradient_options(clip_norm: float | None, bad_gradients: str) -> None:
    if clip_norm is not None and not 0 < clip_norm < math.inf:
        raise UserError(f"clip_norm={clip_norm!r} is no finite number above 0")
    if bad_gradients not in ("stop", "skip"):
        raise UserError(f"bad_gradients={bad_gradients!r} is neither stop nor skip")


def _make_strategy(
    name: StrategyName, launched: Launched | None, options: StepOptions, timeout_s: float
) -> tuple[Strategy, Callable[[], None]]:
    """Return the strategy, and a function to call once it is closed."""
    if name == "auto":
        name = "sequential" if launched is None or launched.world_size == 1 else "mpi"
    if name == "sequential":
        if launched is not None and launched.world_size > 1:
            raise UserError(
                f'strategy="sequential" is for one process, and {launched.launcher} started '
                f"{launched.world_size}"
            )
        return Sequential(options), lambda: None
    if name not in ("mpi", "shared"):
        raise UserError(f"strategy={name!r} is none of auto, sequential, mpi, shared")
    if name == "shared" and options.clip_norm is not None:
        raise UserError(
            'strategy="shared" sums and updates in one pass and cannot clip: leave out '
            'clip_norm, or take strategy="mpi"'
        )
    world, leave = _join(launched, timeout_s)
    kind = MPI if name == "mpi" else Shared
    return kind(world, step_options=options), leave


def _join(launched: Launched | None, timeout_s: float) -> tuple[World, Callable[[], None]]:
    """Return the world of all ranks, and a function to call once it is closed."""
    if launched is not None and is_without_mpi(os.environ):
        rank, size = launched.rank, launched.world_size
        store, _, _ = next(dist.rendezvous("env://", rank, size))
        meeting = Rendezvous(store=fresh_store(store, rank, os.environ), rank=rank, size=size)
        return connect_ranks(meeting, timedelta(seconds=timeout_s)), disconnect_ranks
    world = join_world(
        timeout_s=timeout_s,
        num_started=launched.world_size if launched else None,
        launcher=launched.launcher if launched else "the launcher",
    )
    report_binding(world)
    return world, lambda: None
