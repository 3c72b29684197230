"""`phalanx.start`: a program's model, optimizer and data on all ranks that were started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from phalanx.checkpoints.program import ProgramState, WholeModel
from phalanx.comm.faults import is_fault_tolerant
from phalanx.comm.shared_folder import named_host
from phalanx.data.sampler import num_batches
from phalanx.errors import UserError
from phalanx.jobs.detect import detect
from phalanx.parallel.make import JobRanks
from phalanx.parallel.mesh import placement_notice
from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.run.certificate import probe_processors
from phalanx.run.checkpointing import ProgramCheckpoints
from phalanx.run.defaults import rebalances, seed_of, strategy_of
from phalanx.run.departure import close_ended
from phalanx.run.device import CPU, check_on_cpu
from phalanx.run.failure import report_failures, watch
from phalanx.run.model_changes import ModelChanges, check_sync_batch_norm
from phalanx.run.optimizers import check_alternate, check_model, check_optimizers, schedulers_of
from phalanx.run.options import Checkpoints, Records, check_arguments
from phalanx.run.order import DrawnOrder, samples_in_epoch, unwrap_loader
from phalanx.run.program import ProgramRun
from phalanx.run.setup import BatchSetup, RunSetup, num_ranks_of, place_model
from phalanx.run.source import Source, UnindexedData, check_loading, source_of
from phalanx.run.strategy import AskedStrategy, StrategyChoice, choose_strategy, layout_of
from phalanx.run.strategy_options import (
    BITWISE_MICRO_BATCHES,
    MESH_STRATEGIES,
    check_micro_batches,
)
from phalanx.run.watching import ProgramWatch, checkable, read_check_setup
from phalanx.run.workers import check_workers

AFTER_EPOCHS, THE_USUAL = Checkpoints(), Records()
WITH_OWN_CHECKS = ("model", "optimizer", "data", "comm", "scheduler")
"""Arguments whose types their own checks know better."""


@checkable
def start(
    model: nn.Module,
    optimizer: Optimizer | Mapping[str, Optimizer],
    data: object,
    *,
    batch_size: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    micro_batches: int | None = None,
    bitwise: bool | None = None,
    scheduler: LRScheduler | Sequence[LRScheduler] = (),
    alternate: Sequence[str] = (),
    sharded: bool = False,
    strategy: AskedStrategy | Callable[..., Strategy] = "auto",
    strategy_options: Mapping[str, Any] = MappingProxyType({}),
    comm: Any = None,
    clip_norm: float | None = None,
    autocast: Literal["bf16"] | None = None,
    bad_gradients: Literal["stop", "skip"] = "stop",
    checkpoint_dir: Path | str | None = None,
    resume: bool | Path | str | None = None,
    checkpoints: Checkpoints = AFTER_EPOCHS,
    run_dir: Path | str | None = None,
    records: Records = THE_USUAL,
    seed: int | None = None,
    device: str = "cpu",
    loading: dict[str, Any] | None = None,
    timeout_s: float = 300.0,
) -> ProgramRun:
    """Join the ranks that a launcher started, or train in one process; return a run to iterate.

    Every rank gets rank 0's parameters and buffers. With a fixed `batch_size` any number of ranks
    makes the same updates, up to rounding. Collective.

    Example::

        run = phalanx.start(model, optimizer, data, batch_size=256, epochs=10)
        for batch in run:
            loss = criterion(run.model(batch.inputs), batch.targets)
            run.backward(loss)

    Args:
        model: Module to train. Frozen and unused parameters are allowed.
        optimizer: Optimizer of the model's parameters; or several by name, each of parameters of
            its own (`run.backward(loss, optimizer=name)`), which all step at the end of a global
            batch.
        data: Tensors or NumPy arrays, (samples, …), a tuple or dictionary of them, an Arrow table,
            a folder of `phalanx data pack`, a map-style `Dataset`, or a `DataLoader` of one, whose
            batch size is that of the global batch. Or an iterable of samples, which every rank
            reads in full. Or a function of a number of samples, which needs `steps`: it returns the
            global batch, of which a rank takes its rows, or with `micro_batches` one micro-batch,
            under generators seeded by (seed, step, micro-batch).
        batch_size: Samples of the global batch, over all ranks. None: that of the `DataLoader`.
        epochs: Passes over the data. The run ends with the first of `epochs` and `steps`. None:
            one, or as many as `steps` needs.
        steps: Updates. None: as many as `epochs` has.
        micro_batches: Number of micro-batches of every global batch, on any number of ranks. Each
            has random numbers of its own, so that dropout agrees, too. None: one per rank.
        bitwise: True if the trained model has the same bits on any number of ranks up to
            `micro_batches`, by default 8: gradients of micro-batches are computed on one thread and
            summed in a fixed order. None: True under `phalanx launch --survive`, which needs it,
            else False.
        scheduler: Scheduler of the learning rate, or several; each steps after every update.
        alternate: Names of optimizers, each of which trains one step in turn; `batch.optimizer` is
            the step's.
        sharded: True if `data` is an iterable of this rank's own micro-batches, one per rank and
            step or as many as `micro_batches` says. Each counts by the length of its first tensor.
        strategy: How training is divided over the ranks. `auto`: `mpi` on several ranks, else
            `sequential`. `mpi`: gradients are summed. `shared`: one copy of parameters and
            optimizer state per node. `zero`: state is sharded. `local`: ranks train alone and
            average their parameters. `gloo`: PyTorch's DDP over Gloo. `tensor`: layers are divided
            by the model's `parallelize_plan`. `pipeline`: stages, cut by the model's
            `pipeline_stages`. `mesh`: several of these. `server`: some ranks hold the parameters,
            the others compute. Or a class of the program's own, see `Strategy`.
        strategy_options: Options of the strategy, by the names of the command line's. `mpi`:
            compress, overlap, all_reduce, bucket_mb, powersgd_rank, topk_fraction, link; bitwise
            runs: rebalance, which gives slow ranks fewer micro-batches; `local`: local_steps,
            outer_optimizer, outer_lr, outer_momentum; `zero`: zero_stage; `tensor`: tensor_plan,
            sequence_parallel; `pipeline`: pipeline_schedule, stages_per_rank, pipeline_stages;
            `server`: servers, server_mode, staleness; `mesh`: mesh. Keywords of a class of the
            program's own.
        comm: mpi4py communicator of the ranks that train, such as a part of COMM_WORLD. None: all.
        clip_norm: Largest norm of the gradients over all parameters and ranks. None: no clipping.
        autocast: `bf16` runs the model under `torch.autocast`, also in `evaluate`; its outputs are
            float32 again. None: not.
        bad_gradients: What happens at a gradient that is not finite: `stop` raises, `skip` leaves
            the step out on every rank.
        checkpoint_dir: Folder of checkpoints, one per epoch and one at the end. With it SIGUSR1 or
            SIGTERM to any rank makes all save one and stop. None: no checkpoints.
        resume: True resumes from the newest complete checkpoint in `checkpoint_dir`, or begins
            where there is none; "auto" also begins where all are damaged. A path resumes from that
            checkpoint, or from the newest in that folder. Number of ranks and strategy may differ.
            None: begin.
        checkpoints: Further times of checkpoints, and how many stay.
        run_dir: New folder of the records, which `phalanx report` draws. None: that of the variable
            PHALANX_RUN_DIR, or no records. If ranks name several, that of rank 0.
        records: Further records, and a function that gets the metrics.
        seed: Seed of the order of samples, and of PyTorch's generators, which are seeded anew for
            each micro-batch. None: that of the variable PHALANX_SEED, or 0.
        device: Device of model and data: `cpu`, an accelerator of PyTorch such as `cuda` or
            `xpu:1`, or `auto`, the one of the rank's number on its node. Ranks may have devices of
            several kinds with the strategies `mpi` and `zero`.
        loading: Arguments of PyTorch's `DataLoader` for a `Dataset`: num_workers, collate_fn, ….
        timeout_s: Longest wait for a peer, in seconds.

    Returns:
        The run: iterate it, and call its `backward` for each micro-batch.

    Raises:
        UserError: For what the program or its user can fix; the message says how.
    """
    given = dict(locals())
    report_failures()
    close_ended()
    check_arguments(start, given, without=WITH_OWN_CHECKS)
    optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"": optimizer}
    check_model(model)
    check_optimizers(model, optimizers)
    seed = seed_of(seed)
    saved = ProgramCheckpoints(checkpoint_dir, resume, checkpoints, seed=seed)
    bitwise = is_bitwise(bitwise)
    strategy, strategy_options = strategy_of(strategy), dict(strategy_options)
    is_rebalanced = rebalances(strategy_options.pop("rebalance", None), bitwise=bitwise)
    launched, num_ranks = detect(os.environ), num_ranks_of(comm)
    place = place_model(model, optimizers, device, launched)
    choice = choose_strategy(
        strategy,
        strategy_options,
        num_ranks=num_ranks,
        num_optimizers=len(optimizers),
        clip_norm=clip_norm,
        device=place,
        is_bitwise=bitwise,
    )
    if place == CPU and (choice.name != "sequential" or bitwise):
        check_on_cpu(model)
    batches = _set_up_batches(
        data,
        choice,
        batch_size=batch_size,
        micro_batches=micro_batches,
        epochs=epochs,
        steps=steps,
        sharded=sharded,
        loading=loading,
    )
    check_sync_batch_norm(model, batches.number, num_ranks)
    schedulers = schedulers_of(scheduler, optimizers)
    layout = layout_of(
        choice,
        batch_size=batches.batch_size,
        micro_batches=batches.number if bitwise else batches.micro_batches,
        autocast=autocast,
    )
    accumulate = 1 if layout else max(1, (micro_batches or 1) // choice.data_parts)
    setup = RunSetup(
        model=model,
        optimizers=optimizers,
        schedulers=schedulers,
        batches=batches,
        ranks=JobRanks(launched=launched, timeout_s=timeout_s, communicator=comm, device=place),
        choice=choice,
        strategy_options=strategy_options,
        layout=layout,
        step=StepOptions(
            accumulate=accumulate,
            clip_norm=clip_norm,
            skips_nonfinite=bad_gradients == "skip",
            autocast=torch.bfloat16 if autocast else None,
        ),
        device=place,
        seed=seed,
        alternate=check_alternate(optimizers, alternate, choice.options.compress),
    )
    manifest = setup.manifest(checkpoints.options, has_checkpoints=saved.is_used)
    whole = WholeModel.of(model, optimizers)
    chosen = setup.join()
    state = ProgramState(strategy=chosen, optimizers=optimizers, schedulers=schedulers, whole=whole)
    loop = saved.begin(state, manifest, epochs=batches.epochs, steps=steps, timeout_s=timeout_s)
    order = batches.order(setup.seed, state.drawn)
    loop = replace(loop, rebalances=is_rebalanced)
    if isinstance(order, DrawnOrder):
        if loop.start.epoch:
            order.begin(loop.start.epoch)
        loop = replace(loop, agree=lambda epoch: order.agree(epoch, chosen.group))
    told = setup.begin_records(chosen, loop, run_dir=run_dir, options=records)
    watch(told)
    saved.record_in(told.recorder)
    told.tell(probe_processors(chosen))
    if choice.name in MESH_STRATEGIES and launched and launched.local_world_size:
        told.tell(placement_notice(choice.mesh, launched.local_world_size))
    feed = setup.make_feed(chosen, order, rebalances=is_rebalanced)
    changes = ModelChanges.of(model, chosen.group, place, setup.step.autocast)
    if (check := read_check_setup(os.environ)) is not None:
        program = ProgramWatch(
            *(check, chosen.rank, model, optimizers),
            micro_batches=batches.micro_batches,
            is_sharded=sharded,
        )
        told.recorder.program, feed = program, program.follow(feed)
        loop = replace(loop, ends_with_epoch=True)
    return ProgramRun(setup, changes, chosen, feed, told, saved, loop)


def is_bitwise(asked: bool | None) -> bool:
    """Return whether a run is bitwise. Raises: UserError where it has to be, and must not."""
    if asked is False and is_fault_tolerant():
        raise UserError(
            "bitwise=False, but the ranks were started with --survive, which sums gradients in a "
            "fixed order: leave one of them out"
        )
    return is_fault_tolerant() if asked is None else asked


def _set_up_batches(
    data: object,
    choice: StrategyChoice,
    *,
    batch_size: int | None,
    micro_batches: int | None,
    epochs: int | None,
    steps: int | None,
    sharded: bool,
    loading: dict[str, Any] | None,
) -> BatchSetup:
    """Return the global batches of a run. Raises: UserError where data and numbers do not fit."""
    given, loader = loading, None
    if not sharded:
        loader = data if isinstance(data, DataLoader) else None
        data, batch_size, loading = unwrap_loader(data, batch_size, loading)
    loading = loading or {}
    if batch_size is None:
        raise UserError("batch_size is missing: give the samples of a global batch, over all ranks")
    check_workers(data, loading, num_ranks=choice.mesh.size)
    is_folder = isinstance(data, (str, os.PathLike))
    with named_host(detect(os.environ) if is_folder else None):  # nodes may lack the folder
        source = source_of(
            data, loading, sharded=sharded, epochs=epochs or 1, steps=steps, loader=loader
        )
    check_loading(given, source)
    num_samples = samples_in_epoch(loader, len(source)) if isinstance(source, Sized) else None
    batch_size = min(batch_size, num_samples or batch_size)
    if choice.is_bitwise:
        micro_batches = micro_batches or min(BITWISE_MICRO_BATCHES, batch_size)
        if sharded:
            raise UserError(
                "bitwise=True needs data whose division into batches does not depend on the ranks: "
                "leave sharded=True out"
            )
    return BatchSetup(
        data=data,
        source=source,
        num_samples=num_samples,
        batch_size=batch_size,
        micro_batches=micro_batches,
        number=check_micro_batches(
            micro_batches if choice.is_bitwise or choice.mesh.pp == 1 else None,
            batch_size=batch_size,
            num_ranks=choice.data_parts,
        ),
        epochs=epochs or _epochs_of(source, steps, num_samples, batch_size),
        steps=steps,
        loading=loading,
        loader=loader,
    )


def _epochs_of(source: Source, steps: int | None, num_samples: int | None, batch_size: int) -> int:
    """Return the epochs of a run whose program does not say how many."""
    if steps is None or (isinstance(source, UnindexedData) and source.is_read_once):
        return 1
    return steps if num_samples is None else -(-steps // num_batches(num_samples, batch_size))
