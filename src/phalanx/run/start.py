"""`phalanx.start`: a program's model, optimizer and data on all ranks that were started."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence, Sized
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from phalanx.checkpoints.program import ProgramState
from phalanx.checkpoints.program_recipe import program_manifest
from phalanx.errors import UserError
from phalanx.launch.detect import Launched, detect
from phalanx.parallel.make import JobRanks
from phalanx.parallel.optimizer import JointOptimizer
from phalanx.parallel.option_groups import default_options
from phalanx.parallel.replica_options import Compression, MpiOptions, Overlap
from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.run.agreement import check_alike
from phalanx.run.autocast import Autocast
from phalanx.run.batch_norm import BatchNormSync, check_sync_batch_norm, has_sync_batch_norm
from phalanx.run.check_model import check_model
from phalanx.run.checkpointing import CheckpointPlan, ProgramCheckpoints
from phalanx.run.data_loader import unwrap_loader
from phalanx.run.defaults import seed_of, strategy_of
from phalanx.run.device import FeedOnDevice, choose_device, move_model
from phalanx.run.ended import close_ended
from phalanx.run.failure import report_failures, watch
from phalanx.run.micro_batches import check_number
from phalanx.run.optimizers import check_optimizers
from phalanx.run.program import ProgramOptions, ProgramRun
from phalanx.run.records import Metrics, ProgramRecords
from phalanx.run.setting import describe_data, describe_setting
from phalanx.run.source import identity_of, make_feed, source_of
from phalanx.run.strategy import StrategyName, as_arguments, choose_strategy, make_strategy
from phalanx.run.workers import check_workers
from phalanx.torch_backend.threads import share_cores


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
    sharded: bool = False,
    strategy: StrategyName = "auto",
    strategy_options: Mapping[str, Any] = MappingProxyType({}),
    compress: Compression = "none",
    overlap: Overlap = "auto",
    comm: Any = None,
    clip_norm: float | None = None,
    autocast: Literal["bf16"] | None = None,
    bad_gradients: Literal["stop", "skip"] = "stop",
    checkpoint_dir: Path | str | None = None,
    checkpoint_steps: int | None = None,
    resume: bool | Path | str | None = None,
    run_dir: Path | str | None = None,
    on_metrics: Metrics | None = None,
    seed: int | None = None,
    device: Literal["cpu", "cuda", "auto"] = "cpu",
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
        of one, which brings its batch size and reading with it. An iterable of samples: every rank
        reads all, and computes its part. A function, which needs `steps`: returns so many
        samples, with random numbers of (seed, step): the global batch, of which a rank takes its
        rows; with `micro_batches` one of these, by (seed, step, micro-batch).
    sharded: data are an iterable of this rank's own micro-batches, one of each rank in a step or as
        many as `micro_batches` says; each counts by the length of its first tensor.
    batch_size: samples of the global batch, over all ranks.
    steps: updates after which the run ends, within the epochs.
    micro_batches: into which every global batch is cut, whatever the number of ranks; each has
        random numbers of its own, so that dropout agrees, too. None: one a rank.
    scheduler: of the learning rate, or several; each makes a step after every update.
    strategy: auto: `mpi` on ranks that a launcher started, else `sequential`. `shared`: parameters
        and the optimizer's state once a node. `zero`: state sharded among the ranks. `local`:
        ranks train alone, and average their parameters. `gloo`: PyTorch's DDP over Gloo.
    strategy_options: of `mpi`: all_reduce, bucket_mb, powersgd_rank, topk_fraction, link; of
        `local`: local_steps, outer_optimizer, outer_lr, outer_momentum; as on the command line.
    compress, overlap: of `mpi`: what is sent in place of gradients, and whether during the
        backward pass.
    comm: communicator of mpi4py whose ranks train, such as a part of COMM_WORLD. None: all ranks.
    seed: of the order of samples and of PyTorch's generators, which are seeded anew for each
        micro-batch.
    autocast: bf16: calls of the model, also in `evaluate`, are under `torch.autocast`; what they
        return is float32 again.
    clip_norm: largest norm of the gradients. bad_gradients: of steps that are not finite.
    checkpoint_dir: folder of checkpoints, written after each epoch and at the end of the run; None
        writes none. checkpoint_steps: steps of an epoch after which one is written, too.
    resume: True goes on from the newest complete checkpoint in `checkpoint_dir`, and begins anew
        where there is none; a path from that checkpoint, or from the newest one in that folder.
        The number of ranks and the strategy may be others.
    run_dir: new folder for records, which `phalanx report` draws. None: that of the variable
        PHALANX_RUN_DIR, or none are written.
    on_metrics: called on rank 0 with the number of the update and what `run.log` is given.
    device: of model and data; auto: the GPU of the rank's number on its node, where there is one.
    loading: arguments for PyTorch's `DataLoader` of a `Dataset`: num_workers, collate_fn, ….
    timeout_s: longest wait for a peer.

    Raises: UserError for what the program or the user can mend.
    """
    report_failures()
    strategy, seed = strategy_of(strategy), seed_of(seed)
    close_ended()
    if not sharded:
        data, batch_size, loading = unwrap_loader(data, batch_size, loading)
    launched, loading = detect(os.environ), loading or {}
    num_ranks = _num_ranks(comm, launched)
    _check_counts(
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        micro_batches=micro_batches,
        checkpoint_steps=checkpoint_steps,
    )
    if batch_size is None:
        raise UserError("batch_size is missing: the samples of a global batch, over all ranks")
    if not 0 < timeout_s < math.inf:
        raise UserError(f"timeout_s={timeout_s!r} is no finite number above 0")
    _check_gradient_options(clip_norm, bad_gradients, autocast)
    optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"": optimizer}
    check_model(model)
    check_optimizers(model, optimizers)
    check_workers(data, loading, num_ranks=num_ranks)
    source = source_of(data, loading, sharded=sharded, epochs=epochs, steps=steps)
    num_samples = len(source) if isinstance(source, Sized) else None
    if num_samples == 0:
        raise UserError("data has no samples")
    batch_size = min(batch_size, num_samples or batch_size)
    number = check_number(micro_batches, batch_size=batch_size, num_ranks=num_ranks)
    check_sync_batch_norm(model, number, num_ranks)
    schedulers = [scheduler] if isinstance(scheduler, LRScheduler) else list(scheduler)
    manifest = program_manifest(
        model,
        optimizers,
        schedulers,
        data=describe_data(data),
        num_samples=num_samples or 0,
        batch_size=batch_size,
        seed=seed,
        options={
            "micro_batches": micro_batches,
            "clip_norm": clip_norm,
            "autocast": autocast,
            **identity_of(source),
        },
    )
    plan = CheckpointPlan.of(checkpoint_dir, checkpoint_steps, resume)
    checkpoints = ProgramCheckpoints(plan, manifest)
    step_options = StepOptions(
        clip_norm=clip_norm,
        skips_nonfinite=bad_gradients == "skip",
        autocast=torch.bfloat16 if autocast else None,
    )
    place = choose_device(device, (launched.local_rank if launched else None) or 0)
    if place.type != "cpu":
        move_model(model, list(optimizers.values()), place)
        check_optimizers(model, optimizers)  # they hold the same parameters still
    given = {"compress": compress, "overlap": overlap}
    strategy_options = {**_unlike_defaults(given), **strategy_options}
    choice = choose_strategy(
        strategy,
        strategy_options,
        num_ranks=num_ranks,
        num_optimizers=len(optimizers),
        clips=clip_norm is not None,
        is_on_gpu=place.type != "cpu",
    )
    if launched is not None:
        share_cores(launched.local_world_size or 1)
    ranks = JobRanks(launched=launched, timeout_s=timeout_s, communicator=comm)
    with as_arguments():
        chosen = make_strategy(choice, ranks, seed=seed, step=step_options)
        arguments = {
            "batch_size": batch_size,
            "micro_batches": micro_batches,
            "epochs": epochs,
            "steps": steps,
            "seed": seed,
            "the number of samples": None if sharded else num_samples,
        }
        _prepare(chosen, model, optimizers, choice.name, arguments)
    state = ProgramState(strategy=chosen, optimizers=optimizers, schedulers=schedulers)
    loop_options = checkpoints.begin(state, epochs=epochs, steps=steps)
    setting = describe_setting(
        model,
        optimizers,
        data,
        chosen,
        name=choice.name,
        threads=torch.get_num_threads(),
        loop=loop_options,
        step=step_options,
        micro_batches=micro_batches,
        strategy_options=strategy_options,
        seed=seed,
    )
    records = ProgramRecords.begin(
        chosen,
        run_dir,
        setting,
        on_metrics=on_metrics,
        options=loop_options,
        num_samples=num_samples,
    )
    records.recorder.start(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        train_samples=num_samples or 0,
        expected=chosen.expected(batch_size) if chosen.knows_rule else None,
    )
    feed = make_feed(
        source,
        chosen.group,
        batch_size=batch_size,
        micro_batches=number,
        seed=seed,
        loading=loading,
        has_fixed_cut=micro_batches is not None,
    )
    if place.type != "cpu":
        feed = FeedOnDevice(feed, place)
    checkpoints.record_in(records.recorder)
    with ExitStack() as changes:
        batch_norm = None
        if autocast:
            changes.callback(Autocast(model, torch.bfloat16).close)
        if place.type == "cpu" and has_sync_batch_norm(model):
            batch_norm = BatchNormSync(model, chosen.group)
            changes.callback(batch_norm.close)
        options = ProgramOptions(
            seed=seed,
            schedulers=schedulers,
            loading=loading,
            device=place,
            batch_norm=batch_norm,
            end=changes.pop_all().close,
        )
    run = ProgramRun(chosen, optimizers, feed, records, checkpoints, loop_options, options)
    watch(records)
    return run


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and (type(count) is not int or count < 1):
            raise UserError(f"{name}={count!r} is no whole number from 1")


def _check_gradient_options(
    clip_norm: float | None, bad_gradients: str, autocast: str | None
) -> None:
    if clip_norm is not None and not 0 < clip_norm < math.inf:
        raise UserError(f"clip_norm={clip_norm!r} is no finite number above 0")
    if bad_gradients not in ("stop", "skip"):
        raise UserError(f"bad_gradients={bad_gradients!r} is neither stop nor skip")
    if autocast not in (None, "bf16"):
        raise UserError(f"autocast={autocast!r} is neither None nor bf16")


def _unlike_defaults(options: Mapping[str, str]) -> dict[str, str]:
    defaults = default_options(MpiOptions)
    return {name: value for name, value in options.items() if value != defaults[name]}


def _prepare(
    strategy: Strategy,
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
    name: str,
    arguments: Mapping[str, float | None],
) -> None:
    """Give every rank rank 0's parameters, and the strategy model and optimizers. Collective.

    arguments: that are the same on every rank.
    """
    try:
        check_alike(strategy.group, model, arguments)
    except UserError:
        strategy.close()
        raise
    own = list(optimizers.values())
    if strategy.makes_optimizer and own[0].state:
        raise UserError(
            f'strategy="{name}" keeps the state of the optimizer itself, and this one has made '
            'steps already: take strategy="mpi"'
        )
    strategy.prepare(model, own[0] if len(own) == 1 else JointOptimizer(own))


def _num_ranks(comm: Any, launched: Launched | None) -> int:
    if comm is None:
        return launched.world_size if launched else 1
    if not hasattr(comm, "Get_size"):
        raise UserError(f"comm is of type {type(comm).__name__}: give a communicator of mpi4py")
    size: int = comm.Get_size()
    return size
