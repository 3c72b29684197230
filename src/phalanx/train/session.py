"""The life of a rank: connect to its peers, train, write its records, leave."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from phalanx.checkpoints.checkpoint import parameters_sha256
from phalanx.checkpoints.find import check_order
from phalanx.checkpoints.load import agreed_manifest, load, readable_everywhere
from phalanx.checkpoints.memory_copies import MemoryCopies
from phalanx.checkpoints.writer import CheckpointWriter
from phalanx.comm.shared_folder import named_host
from phalanx.data.sources.source import Source
from phalanx.launch.detect import Launched
from phalanx.models.build import build_model
from phalanx.models.options import is_own_model
from phalanx.parallel.strategy import Strategy
from phalanx.records.environment import process_age_s
from phalanx.records.events import NoticeEvent, TrainingEvaluationEvent
from phalanx.records.files import EventWriter
from phalanx.records.totals import RankTotals, summarize
from phalanx.run.certificate import certify, probe_processors
from phalanx.run.memory import keep_freed_memory, resident_bytes
from phalanx.run.stop import Stopped
from phalanx.torch_backend.threads import compute_bitwise
from phalanx.train.bitwise import make_training
from phalanx.train.checkpointing import (
    StartingPoint,
    manifest_of,
    resumed_from_memory,
    starting_point,
)
from phalanx.train.config import TrainConfig
from phalanx.train.data_source import open_source
from phalanx.train.epoch_summaries import EpochSummaries
from phalanx.train.evaluation import evaluate_on_training_data
from phalanx.train.loop import Training, TrainingContext, log_notices
from phalanx.train.make_strategy import make_strategy
from phalanx.train.optimizer import update_rule
from phalanx.train.over_nodes import (
    follows_first_rank,
    may_span_nodes,
    share_completed,
)
from phalanx.train.own_model import check_same_model, make_loss
from phalanx.train.parallel_options import parse_slow_rank
from phalanx.train.resume import RunIsFinishedError
from phalanx.train.run import complete, with_ranks
from phalanx.train.run_output import RunOutput
from phalanx.train.schedule import schedule_of


def train(config: TrainConfig, launched: Launched | None, output: RunOutput) -> None:
    began_at = time.perf_counter() - process_age_s()
    lines: list[str] = []
    if output.folder is None:
        output.keeps_run = True
        joined = _join_by_launcher(config, launched, lines)
        if joined is None:
            return
        config, strategy = joined
    else:
        strategy = _join(config, launched)
    config = resumed_from_memory(config, strategy.group)
    with named_host(launched):
        start = starting_point(config, strategy.group)
    writer = output.open(config, launched, strategy.group, lines, began_at)
    with named_host(launched):
        context, saver, num_parameters = _prepare(config, strategy, start, writer, began_at)
    training = make_training(config, context)
    training.loop.recorder.gathered = output.gathered
    _start(training, context, num_parameters)
    if training.loop.stop:
        training.loop.stop.on_terminate = output.on_terminate
    assert output.folder is not None, "opened"
    stopped = None
    try:
        _epochs(config, context, training, saver, output.folder)
    except Stopped as request:
        stopped = request
    _finish(output, context, training, saver, stopped)
    strategy.close()
    if stopped is not None:
        raise stopped


def _finish(
    output: RunOutput,
    context: TrainingContext,
    training: Training,
    saver: CheckpointWriter | None,
    stopped: Stopped | None,
) -> None:
    """Write the last lines of a run that came to its end, or was stopped before. Collective."""
    strategy = context.strategy
    if context.copies:
        context.copies.close()
    if saver:
        saver.close()
    context.source.close()
    if output.tracing:
        output.tracing.compare_clocks()
    if stopped is None:
        certificate = certify(strategy, training.loop.position.step)
        training.loop.recorder.finish(parameters_sha256(strategy.model), certificate)
    else:
        training.loop.recorder.stop(stopped.steps)
    output.close()
    if output.gathered:
        output.gathered.bring()
    strategy.group.barrier()
    if output.keeps_run:
        _through_losses(strategy, lambda: output.end_run(stopped))
    training.loop.stop_listening()


def _join_by_launcher(
    config: TrainConfig, launched: Launched | None, lines: list[str]
) -> tuple[TrainConfig, Strategy] | None:
    """Complete the options, and join the ranks that the user's own launcher started; None: there
    is nothing left to do.

    lines: what the user should hear of data and checkpoint is added to it on rank 0.
    """
    try:
        with named_host(launched):
            if follows_first_rank(launched):
                config = with_ranks(config, launched)
            else:
                notices: list[str] = []
                config, choice = complete(config, launched, notices)
                lines += [choice.reason, *notices]
    except RunIsFinishedError as finished:
        _leave(config, launched, finished)
        return None
    strategy = _join(config, launched)
    if may_span_nodes(launched):
        completed = share_completed(config, config, strategy.group)
        if completed is None:
            strategy.close()
            return None
        config = completed
    return config, strategy


def _join(config: TrainConfig, launched: Launched | None) -> Strategy:
    assert config.threads is not None, "the configuration is complete, or follows rank 0's"
    torch.set_num_threads(config.threads)
    if config.bitwise:
        compute_bitwise()
    keep_freed_memory()
    return make_strategy(config, launched)


def _leave(config: TrainConfig, launched: Launched | None, finished: RunIsFinishedError) -> None:
    """End a run that has nothing left to do; on all ranks, or some would wait for the others."""
    strategy = make_strategy(config, launched)
    if may_span_nodes(launched):
        share_completed(None, config, strategy.group)
    else:
        agreed_manifest(finished.checkpoint, strategy.group)
    if strategy.rank == 0:
        print(finished, flush=True)
    strategy.close()


def _prepare(
    config: TrainConfig,
    strategy: Strategy,
    start: StartingPoint,
    writer: EventWriter,
    began_at: float,
) -> tuple[TrainingContext, CheckpointWriter | None, int]:
    """Make data, model, optimizer and, when resuming, load their state; also the checkpoint writer,
    where one is wanted, and count the parameters of the whole model."""
    dtype = getattr(torch, config.dtype)
    source = open_source(config, strategy.group, dtype)
    resident_before = resident_bytes()
    model = build_model(
        config.model,
        seed=config.seed,
        dtype=dtype,
        options=config.model_options,
        shape=source.shape,
    )
    num_ranks = strategy.size - strategy.group.num_spares
    global_batch_size = config.global_batch_size(num_ranks)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    sizes = {"global_batch_size": global_batch_size, "num_train": source.num_train}
    schedule = schedule_of(config, **sizes, start=start.schedule_start)
    strategy.loss, strategy.data_shape = make_loss(config, model, source.shape), source.shape
    check_same_model(config, model, strategy.group)
    strategy.prepare(model, update_rule(config, schedule.peak))
    _notify(writer, began_at, strategy, probe_processors(strategy))
    if config.resume:
        _resume(config.resume, strategy, source, writer, began_at)
    saver, copies = _begin_checkpoints(config, strategy, source, start, shapes, writer, began_at)
    slow_rank, delay_s = parse_slow_rank(config.slow_rank or "0:0")
    context = TrainingContext(
        strategy=strategy,
        delay_s=delay_s if strategy.rank == slow_rank else 0.0,
        rebalances=config.rebalance,
        resident_before=resident_before,
        first_epoch=start.position[0],
        first_sample=start.position[1],
        checkpoint_steps=config.checkpoint_steps,
        checkpoint_seconds=config.checkpoint_seconds,
        save=None if saver is None else partial(_save_within, saver),
        poll=saver.poll if saver else None,
        copies=copies,
        schedule=schedule,
        source=source,
        global_batch_size=global_batch_size,
        epochs=config.epochs,
        seed=config.seed,
        seeds_steps=is_own_model(config.model),
        writer=writer,
        began_at=began_at,
    )
    return context, saver, num_parameters


def _resume(
    checkpoint: Path, strategy: Strategy, source: Source, writer: EventWriter, began_at: float
) -> None:
    """Load the checkpoint, and report what of it did not fit."""
    manifest = agreed_manifest(checkpoint, strategy.group)
    assert manifest is not None, "rank 0 has read it"
    with readable_everywhere(checkpoint, manifest, strategy.group) as folder:
        _, messages = load(folder, strategy)
    _notify(writer, began_at, strategy, *messages)
    check_order(manifest, checkpoint, source.order)
    strategy.group.barrier()  # `begin` may rename the folder that slower ranks still read


def _begin_checkpoints(
    config: TrainConfig,
    strategy: Strategy,
    source: Source,
    start: StartingPoint,
    shapes: dict[str, tuple[int, ...]],
    writer: EventWriter,
    began_at: float,
) -> tuple[CheckpointWriter | None, MemoryCopies | None]:
    """Return who writes checkpoints to the disk, and copies of them into memory, where they are
    wanted. Collective. shapes: of the whole model's tensors."""
    if config.checkpoint_dir is None:
        return None, None
    saver = CheckpointWriter(
        folder=config.checkpoint_dir,
        strategy=strategy,
        manifest=manifest_of(config, source, start, strategy.group),
        writer=writer,
        began_at=began_at,
        shapes=shapes,
        in_background=config.checkpoint_thread,
        keep=config.keep_checkpoints,
    )
    _notify(writer, began_at, strategy, saver.begin())
    copies = MemoryCopies.of(config.checkpoint_dir, strategy, saver.manifest, shapes)
    if copies is not None:
        copies.writer, copies.began_at = writer, began_at
    return saver, copies


def _notify(writer: EventWriter, began_at: float, strategy: Strategy, *lines: str) -> None:
    """Record lines for the user, and print them on rank 0; empty ones are none."""
    for line in filter(None, lines):
        writer.add(NoticeEvent(at_s=time.perf_counter() - began_at, text=line))
        if strategy.rank == 0:
            print(line, flush=True)


def _start(training: Training, context: TrainingContext, num_parameters: int) -> None:
    """Write this rank's first line. num_parameters: of the whole model, of which it may hold a
    part."""
    source = context.source
    training.loop.recorder.start(
        num_parameters=num_parameters,
        train_samples=source.num_train,
        expected=context.strategy.expected(context.global_batch_size),
        validation_samples=source.num_validation,
        targets_per_sample=source.shape.targets_per_sample,
    )
    training.record_losses_before()


def _epochs(
    config: TrainConfig,
    context: TrainingContext,
    training: Training,
    saver: CheckpointWriter | None,
    folder: Path,
) -> None:
    """Train the epochs that are left; after each, rank 0 writes the summary, and a checkpoint
    follows. folder: of the records."""
    strategy, group = context.strategy, context.strategy.group
    known, summaries = {"trained_s": 0.0}, EpochSummaries(group, context.writer, folder, config)
    if training.loop.places is not None:
        training.loop.places.known = known
    while training.loop.position.epoch < config.epochs:
        training.run_epoch()
        epoch = training.loop.position.epoch - 1
        rows = group.together(lambda: group.gather(training.totals().values()))
        log_notices(context)
        if rows is not None:
            summary = summarize(
                [RankTotals.from_values(row) for row in rows],
                epoch=epoch,
                trained_s=known["trained_s"],
                at_s=time.perf_counter() - context.began_at,
            )
            known["trained_s"] = summary.trained_s
            summaries.add(summary)
        if saver:
            _through_losses(strategy, partial(saver.after_epoch, epoch))
            training.loop.note_saved()
        else:
            _through_losses(strategy, lambda: None)
        summaries.settle()
        if epoch < config.epochs - 1:
            training.loop.stop_if_asked()
    if config.final_train_samples:
        evaluated = list[TrainingEvaluationEvent]()
        evaluate_model = partial(
            evaluate_on_training_data,
            strategy,
            context.source,
            config.epochs - 1,
            config.final_train_samples,
            began_at=context.began_at,
        )
        _through_losses(strategy, lambda: evaluated.append(evaluate_model()))
        context.writer.add(evaluated[-1])


def _through_losses(strategy: Strategy, work: Callable[[], object]) -> None:
    """Do what the ranks do together; where some may be lost, from the beginning after a loss, and
    nobody goes on before all have done it."""
    group = strategy.group

    def work_and_wait() -> None:
        work()
        group.barrier()

    if strategy.numbers is None:
        work()
    else:
        group.together(work_and_wait)


def _save_within(saver: CheckpointWriter, epoch: int, samples_seen: int) -> None:
    _through_losses(saver.strategy, lambda: saver.within_epoch(epoch, samples_seen))
