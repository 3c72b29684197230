"""The training of one rank: a program of `phalanx.start`."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from phalanx import Checkpoints, MicroBatch, ProgramRun, Records, RunDescription, UserError, start
from phalanx.jobs.detect import Launched, detect
from phalanx.jobs.record import RUN_DIR
from phalanx.models.build import build_model
from phalanx.records.events import SummaryEvent
from phalanx.records.files import read_run
from phalanx.run.failure import ending_program
from phalanx.run.strategy_options import OPTION_NAMES
from phalanx.train.agreement import Agreement, TrainingData
from phalanx.train.as_options import as_options
from phalanx.train.config import DEFAULTS, TrainConfig
from phalanx.train.optimizer import make_optimizer
from phalanx.train.options import AUTOMATIC, parse_slow_rank
from phalanx.train.own_model import TrainingLoss, make_loss, named_tensor_plan
from phalanx.train.resume import SCHEDULE_START, allowed_changes, recipe_of, restarts_schedule
from phalanx.train.run import epoch_line, folder_of, setting_of, title
from phalanx.train.schedule import LRSchedule, schedule_of

EVALUATION_BATCH_SIZE = 500


def train_as_launched() -> None:
    """Train on a rank that `phalanx train` started: the launcher names the folder of the run, whose
    record has its options. Ends the process when anything fails."""
    with ending_program():
        folder = Path(os.environ[RUN_DIR])
        train(TrainConfig.from_record(read_run(folder).config), detect(os.environ), folder)


def train(config: TrainConfig, launched: Launched | None, folder: Path | None = None) -> Path:
    """Train on this rank, one of all.

    folder: of the records, in which whoever has started the ranks keeps `run.json`; None: these
        ranks keep it, in a folder that rank 0 names.
    Returns: the folder of the records.
    """
    with Agreement(config, launched, is_begun=folder is not None) as agreement:
        complete = agreement.complete()
        data = agreement.open_data(complete)
        if folder is None and agreement.is_first:
            print("\n".join([*agreement.lines, title(complete)]), flush=True)
        run_dir = folder or folder_of(complete)
        training = Training.begin(complete, data, run_dir, is_begun=folder is not None)
        gc.freeze()  # modules that PyTorch imports with its first optimizer, too
        gc.enable()
        with training.run, as_options():
            training.train_epochs()
    return run_dir


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training on one rank that has begun."""

    config: TrainConfig
    """Complete."""
    data: TrainingData
    run: ProgramRun
    optimizer: Optimizer
    loss: TrainingLoss
    schedule: LRSchedule
    show: Callable[[SummaryEvent], None] | None = None
    """Prints the line of an epoch; None: whoever has started the ranks does."""
    delay_s: float = 0.0
    """Seconds by which each micro-batch of this rank is made slower."""

    @classmethod
    def begin(
        cls,
        config: TrainConfig,
        data: TrainingData,
        run_dir: Path | None = None,
        *,
        is_begun: bool = False,
    ) -> Training:
        """Make model and optimizer, and start the run. Collective.

        config: complete. run_dir: of the records. is_begun: as of `RunDescription`.
        """
        if config.threads is not None:
            torch.set_num_threads(config.threads)
            os.environ.setdefault("OMP_NUM_THREADS", str(config.threads))  # `start` keeps it
        batch_size = config.global_batch_size()
        on_node = config if data.folder is None else replace(config, data=data.folder)
        description = RunDescription(
            kind="train",
            config=config.as_record(),
            setting=None if is_begun else setting_of(config),
            is_begun=is_begun,
            validation_samples=data.num_validation,
            targets_per_sample=data.shape.targets_per_sample,
        )
        model = build_model(
            config.model,
            seed=config.seed,
            dtype=getattr(torch, config.dtype),
            options=config.model_options,
            shape=data.shape,
        )
        loss = make_loss(config, model, data.shape)
        optimizer = make_optimizer(config, model.parameters(), config.learning_rate(batch_size))
        with as_options():
            run = start(
                model,
                optimizer,
                data.train,
                batch_size=batch_size,
                epochs=config.epochs,
                micro_batches=config.num_micro_batches(),
                bitwise=config.bitwise,
                strategy=config.strategy,
                strategy_options=_strategy_options(config),
                clip_norm=config.clip_norm,
                autocast=None if config.autocast == "none" else config.autocast,
                bad_gradients=config.bad_gradients,
                checkpoint_dir=config.checkpoint_dir,
                resume="auto" if config.resume == AUTOMATIC else config.resume,
                checkpoints=_checkpoints(on_node),
                run_dir=run_dir,
                records=Records(
                    trace=config.trace, counts_correct=loss.counts_correct, description=description
                ),
                seed=config.seed,
                device=config.device,
                timeout_s=config.timeout_s,
            )
        return cls(
            config=config,
            data=data,
            run=run,
            optimizer=optimizer,
            loss=loss,
            schedule=schedule_of(
                config,
                global_batch_size=batch_size,
                num_train=data.num_train,
                start=_schedule_start(on_node, run),
            ),
            show=None if is_begun else lambda each: print(epoch_line(each, config), flush=True),
            delay_s=_delay_s(config, run.rank),
        )

    def train_epochs(self) -> None:
        """Train the epochs that are left, and evaluate the model after each. Collective."""
        config, run = self.config, self.run
        evaluate = partial(run.validate, loss=self.loss.evaluate, batch_size=EVALUATION_BATCH_SIZE)
        for epoch in run.epochs():
            for batch in epoch:
                self._step(batch)
            validation, training = evaluate(self.data.validation), None
            if config.final_train_samples and epoch.number == config.epochs - 1:
                training = evaluate(run.some_samples(config.final_train_samples))
            run.summarize(validation, training=training, show=self.show)

    def _step(self, batch: MicroBatch) -> None:
        """Compute a micro-batch, by the learning rate of its step."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.at(batch.step)
        if self.delay_s:
            time.sleep(self.delay_s)
        self.run.step(batch, self.loss.train)


def _strategy_options(config: TrainConfig) -> dict[str, Any]:
    """Return the options of the strategy as `phalanx.start` has them."""
    given = {name: getattr(config, name) for name in (*OPTION_NAMES, "rebalance")}
    options = {name: value for name, value in given.items() if value != DEFAULTS[name]}
    for name in ("strategy", "micro_batches"):  # arguments of their own
        options.pop(name, None)
    if config.strategy == "zero":
        options["zero_stage"] = config.zero_stage  # whose default a program has not
    if config.tensor_plan is not None:
        options["tensor_plan"] = named_tensor_plan(config.tensor_plan)
    return options


def _checkpoints(config: TrainConfig) -> Checkpoints:
    return Checkpoints(
        every_steps=config.checkpoint_steps,
        every_seconds=config.checkpoint_seconds,
        keep=config.keep_checkpoints,
        in_thread=config.checkpoint_thread,
        options=recipe_of(config),
        allow_changes=allowed_changes(config),
    )


def _delay_s(config: TrainConfig, rank: int) -> float:
    """Return by how much each micro-batch of a rank is made slower."""
    slow_rank, step_s = parse_slow_rank(config.slow_rank or "0:0")
    number, pieces = config.num_micro_batches(), 1.0
    if number is not None and "pp" not in config.axes():  # a pipeline cuts itself
        pieces = number / config.data_parts(config.num_ranks)
    return step_s / pieces if rank == slow_rank else 0.0


def _schedule_start(config: TrainConfig, run: ProgramRun) -> tuple[int, int]:
    """Return the position from which the learning rate's schedule counts, which checkpoints keep: a
    run that restarts it begins there, once."""
    epoch, seen, _ = run.position
    start = tuple(run.state.get(SCHEDULE_START, (0, 0)))
    if run.resumed is not None and restarts_schedule(config, run.resumed, start):
        start, left = (epoch, seen), config.epochs - epoch
        if left <= 0:
            raise UserError(f"--epochs {config.epochs} leaves no epoch to train: raise --epochs")
        if 0 < left <= config.warmup_epochs:
            raise UserError(
                f"--warmup-epochs {config.warmup_epochs:g} is as long as the {left} epochs that "
                "remain for --restart-schedule: use a shorter warm-up"
            )
    run.state[SCHEDULE_START] = [*start]
    return start
