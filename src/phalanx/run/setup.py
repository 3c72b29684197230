"""Setup of a program's run: what `phalanx.start` was given, checked, before any rank is joined."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from phalanx.checkpoints.manifest import Manifest, Value
from phalanx.checkpoints.program_recipe import ENDS, LAYERS, program_manifest
from phalanx.errors import UserError
from phalanx.jobs.detect import Launched, detect
from phalanx.jobs.survival import num_spares
from phalanx.parallel.make import JobRanks
from phalanx.parallel.optimizer import JointOptimizer
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.step import StepOptions, trained_parameters
from phalanx.parallel.strategy import Strategy
from phalanx.records.schema import Setting
from phalanx.run.agreement import check_alike, check_same_pack
from phalanx.run.batch import LoopOptions, MicroBatch
from phalanx.run.device import CPU, choose_device, copy_to, move_model
from phalanx.run.feed import Feed, FeedPlace, IndexedFeed, MappedFeed
from phalanx.run.memory import keep_freed_memory
from phalanx.run.model_changes import has_sync_batch_norm
from phalanx.run.optimizers import check_optimizers, forget_others
from phalanx.run.options import Records, RunDescription
from phalanx.run.order import SampleOrder, describe_order, order_of
from phalanx.run.packed import PackedSamples, check_damaged
from phalanx.run.program_loss import ProgramLoss
from phalanx.run.randomness import generators_kept
from phalanx.run.records import ProgramRecords
from phalanx.run.source import Source, UnindexedData, ends_of, identity_of, layers_of
from phalanx.run.strategy import StrategyChoice, as_arguments, make_strategy
from phalanx.torch_backend.threads import compute_bitwise, share_cores


@dataclass(frozen=True, kw_only=True)
class BatchSetup:
    """Global batches: their data, sizes and number."""

    data: object
    """Data as the program gave them."""
    source: Source
    num_samples: int | None
    """Samples of an epoch; None: not known."""
    batch_size: int
    micro_batches: int | None
    """Micro-batches that were asked for; None: one per rank."""
    number: int
    """Number of micro-batches in a full global batch."""
    epochs: int
    steps: int | None
    loading: dict[str, Any]
    """Arguments of PyTorch's `DataLoader`."""
    loader: DataLoader[Any] | None
    """Gives the order of samples; None: the run's own."""

    def sample(self) -> Tensor:
        """Return the inputs of the first sample, (1, …). Raises: UserError where they are no
        tensor, or are not read by number."""
        if not isinstance(self.source, Sized):
            raise UserError(
                "a pipeline splits the model by the shape of its inputs: give samples with "
                "indices, such as tensors or a Dataset"
            )
        with generators_kept():
            (data,) = self.source.batches([torch.zeros(1, dtype=torch.int64)])
        inputs = MicroBatch(data, 1, 0, 0, 0, True, True, 1).inputs
        if not isinstance(inputs, Tensor):
            raise UserError(
                "a pipeline's first stage takes one tensor, but the inputs of a sample are of type "
                f"{type(inputs).__name__}: give such data, or use another strategy"
            )
        return inputs

    def order(self, seed: int, drawn: dict[str, Any]) -> SampleOrder | None:
        """Return the order of samples by index; None: data have an order of their own.

        drawn: what checkpoints know of it.
        """
        if not isinstance(self.source, Sized):
            return None
        if isinstance(self.source, PackedSamples):
            return self.source.order(self.batch_size, seed)
        return order_of(
            self.loader, len(self.source), self.batch_size, seed=seed, steps=self.steps, drawn=drawn
        )


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """Everything that decides a run; each method makes a part of it, collectively."""

    model: nn.Module
    optimizers: Mapping[str, Optimizer]
    schedulers: Sequence[LRScheduler]
    batches: BatchSetup
    ranks: JobRanks
    choice: StrategyChoice
    strategy_options: Mapping[str, Any]
    """Options of the strategy, unlike the defaults."""
    layout: PipelineLayout | None
    """Layout of a pipeline of several ranks."""
    step: StepOptions
    device: torch.device
    seed: int
    alternate: Sequence[str]
    """Names of the optimizers that the steps train in turn; none: each step trains all."""

    def manifest(self, program: Mapping[str, Value], *, has_checkpoints: bool) -> Manifest:
        """Return the manifest of checkpoints at the first step. Not collective.

        program: the program's own options. has_checkpoints: the model's text and the ends of the
        data are part of it.
        """
        batches = self.batches
        return program_manifest(
            self.model,
            self.optimizers,
            self.schedulers,
            data=describe_data(batches.data),
            num_samples=batches.num_samples or 0,
            batch_size=batches.batch_size,
            seed=self.seed,
            options={
                "micro_batches": batches.micro_batches,
                "clip_norm": self.step.clip_norm,
                "autocast": None if self.step.autocast is None else "bf16",
                **({"bitwise": True} if self.choice.is_bitwise else {}),
                **({"alternate": " ".join(self.alternate)} if self.alternate else {}),
                **identity_of(batches.source),
                **(
                    {LAYERS: layers_of(self.model), ENDS: ends_of(batches.source)}
                    if has_checkpoints
                    else {}
                ),
                **describe_order(batches.loader),
            },
            program=program,
        )

    def join(self) -> Strategy:
        """Join the ranks, and return the strategy with rank 0's parameters on each.

        Raises: UserError when ranks differ, or cannot work together so.
        """
        self._check_compression()
        keep_freed_memory()
        if self.choice.is_bitwise:
            compute_bitwise()
        elif self.ranks.launched is not None:
            share_cores(self.ranks.launched.local_world_size or 1)
        with as_arguments():
            strategy = make_strategy(
                self.choice,
                self.ranks,
                layout=self.layout,
                batch_size=self.batches.batch_size,
                micro_batches=self.batches.number,
                seed=self.seed,
                step=self.step,
            )
            strategy.loss = ProgramLoss()
            try:
                if strategy.makes_steps:
                    strategy.sample = self.batches.sample()
                check_alike(strategy.group, self.model, self._agreed())
                identity = identity_of(self.batches.source)
                check_same_pack(strategy.group, identity.get("pack", ""))
                self._prepare(strategy)
            except ValueError:  # every rank finds the same
                strategy.close()
                raise
        return strategy

    def _prepare(self, strategy: Strategy) -> None:
        name, own = self.choice.label, list(self.optimizers.values())
        if strategy.makes_optimizer and own[0].state:
            raise UserError(
                f'strategy="{name}" manages the state of the optimizer, but this optimizer has '
                'already made steps: use strategy="mpi"'
            )
        names = {id(p): name for name, p in self.model.named_parameters()}
        try:
            strategy.prepare(self.model, own[0] if len(own) == 1 else JointOptimizer(own))
        except UserError:
            raise
        except ValueError as error:  # errors about dtypes
            raise UserError(f'strategy="{name}": {error}: use strategy="mpi"') from error
        if strategy.is_sharded:  # else the whole ones would stay in memory
            held = dict(strategy.model.named_parameters())
            if strategy.shards:
                held |= zip(trained_parameters(strategy.model), strategy.shards, strict=True)
            for group in own[0].param_groups:
                whole = [names[id(parameter)] for parameter in group["params"]]
                group["params"] = [held[name] for name in whole if name in held]
            if strategy.makes_steps:
                forget_others(self.model, strategy.model)

    def _check_compression(self) -> None:
        """Raises: UserError for gradients that no compressor takes."""
        compress = self.strategy_options.get("compress", "none")
        complex_ones = [name for name, p in self.model.named_parameters() if p.is_complex()]
        if compress != "none" and complex_ones:
            raise UserError(
                f'compress="{compress}" is for real gradients, but {complex_ones[0]} is complex: '
                "leave it out"
            )

    def _agreed(self) -> dict[str, float | str | None]:
        """Return values that are the same on every rank."""
        batches, summed = self.batches, has_sync_batch_norm(self.model)
        return {
            "device (of a model with SyncBatchNorm)": self.device.type if summed else None,
            "batch_size": batches.batch_size,
            "micro_batches": batches.micro_batches,
            "epochs": batches.epochs,
            "steps": batches.steps,
            "seed": self.seed,
            "bitwise": batches.number if self.choice.is_bitwise else None,
            "the number of samples": batches.num_samples,
        }

    def begin_records(
        self,
        strategy: Strategy,
        loop: LoopOptions,
        *,
        run_dir: Path | str | None,
        options: Records,
    ) -> ProgramRecords:
        """Return this rank's records, begun. Keywords: as `phalanx.start` has them."""
        batches = self.batches
        described = options.description or RunDescription(resident_before=None)
        if described.setting is None:
            setting = self._setting(strategy, loop)
            config = {**msgspec.to_builtins(setting), **described.config}
            described = replace(described, config=config, setting=setting)
        records = ProgramRecords(
            strategy,
            run_dir,
            described,
            options=loop,
            num_samples=batches.num_samples,
            asked=options,
        )
        records.recorder.start(
            num_parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            train_samples=batches.num_samples or 0,
            expected=strategy.expected(batches.batch_size) if strategy.knows_rule else None,
            device=str(self.device),
        )
        return records

    def _setting(self, strategy: Strategy, loop: LoopOptions) -> Setting:
        """Return everything that decides the run's numbers, in the records' words."""
        step, number = self.step, self.batches.micro_batches
        kinds = strategy.device_kinds or self.device.type
        options: dict[str, str | int | float | bool] = {
            option: value if isinstance(value, (int, float)) else str(value)
            for option, value in self.strategy_options.items()
        }
        further: dict[str, str | int | float | bool | None] = {
            "micro_batches": number,
            "bitwise": True if strategy.num_blocks is not None else None,
            "spares": strategy.group.num_spares or None,
            "clip_norm": step.clip_norm,
            "bad_gradients": "skip" if step.skips_nonfinite else None,
            "autocast": None if step.autocast is None else "bf16",
            "device": None if kinds == "cpu" else kinds,
        }
        first = next(iter(self.optimizers.values()))
        return Setting(
            model=name_of_model(self.model),
            dataset=describe_data(self.batches.data),
            strategy=self.choice.label,
            ranks=strategy.size - strategy.group.num_spares,
            threads=torch.get_num_threads(),
            global_batch_size=loop.batch_size,
            epochs=loop.epochs,
            learning_rate=float(first.param_groups[0]["lr"]),
            learning_rate_rule="none",
            optimizer=" + ".join(type(each).__name__ for each in self.optimizers.values()),
            seed=self.seed,
            dtype=" ".join(sorted({str(p.dtype)[6:] for p in self.model.parameters()})),
            nodes=strategy.group.num_nodes,
            options=options | {name: v for name, v in further.items() if v is not None},
        )

    def make_feed(self, strategy: Strategy, order: SampleOrder | None, *, rebalances: bool) -> Feed:
        """Return this rank's feed. order: of samples by index. rebalances: other ranks may get
        micro-batches of it. Collective."""
        batches, device = self.batches, self.device
        if isinstance(batches.source, PackedSamples):
            check_damaged(batches.source, strategy)
            batches.source.open(
                strategy.group,
                seed=self.seed,
                epochs=batches.epochs,
                timeout_s=self.ranks.timeout_s,
            )
        place = FeedPlace(
            batch_size=batches.batch_size,
            micro_batches=strategy.data_size if strategy.makes_steps else batches.number,
            has_fixed_cut=batches.micro_batches is not None,
            seed=self.seed,
            rank=strategy.data_rank,
            num_ranks=strategy.data_size,
            evenly=strategy.meets_in_passes,
            loading=batches.loading,
            group=strategy.group,
        )
        if isinstance(batches.source, UnindexedData):
            feed = batches.source.feed(place)
        else:
            assert order is not None, "of samples by index"
            is_bitwise = strategy.num_blocks is not None
            feed = IndexedFeed(batches.source, order, place, seeds_samples=is_bitwise)
        if not strategy.is_in_lockstep and (order is None or order.num_samples is None):
            raise UserError(
                'strategy="server" needs the number of steps of an epoch: give samples with '
                "indices, such as tensors or a Dataset, in an order of known length"
            )
        is_divided = strategy.numbers is not None or (rebalances and strategy.size > 1)
        if is_divided and not feed.is_divisible:
            option = "rebalance" if strategy.numbers is None else "--survive"
            whose = "slow" if strategy.numbers is None else "lost"
            raise UserError(
                f"{option} moves samples of {whose} ranks to other ranks, but this data is a "
                "stream: give samples with indices, such as tensors or a Dataset, or leave it out"
            )
        if names := self.alternate:
            feed = MappedFeed(feed, lambda b: replace(b, optimizer=names[b.step % len(names)]))
        if device != CPU:
            feed = MappedFeed(feed, lambda b: replace(b, data=copy_to(device, b.data)))
        return feed


def num_ranks_of(comm: Any) -> int:
    """Return the ranks of a communicator of mpi4py; None: those that a launcher started, or one.
    Spares are not counted.

    Raises: UserError for what is no communicator, and for a part of ranks with spares.
    """
    spares = num_spares(os.environ)
    if comm is None:
        launched = detect(os.environ)
        return launched.world_size - spares if launched else 1
    if spares:
        raise UserError("comm= and --spares exclude each other: spares are for all ranks")
    if not hasattr(comm, "Get_size"):
        raise UserError(f"comm is of type {type(comm).__name__}: give a communicator of mpi4py")
    size: int = comm.Get_size()
    return size


def place_model(
    model: nn.Module, optimizers: Mapping[str, Optimizer], device: str, launched: Launched | None
) -> torch.device:
    """Return the device of this rank; a model for a GPU is moved there.

    Raises: UserError as `choose_device`; it names the rank, as others may be told other devices.
    """
    try:
        place = choose_device(device, (launched.local_rank if launched else None) or 0)
    except UserError as error:
        if launched is None or launched.world_size == 1:
            raise
        raise UserError(f"rank {launched.rank}: {error}") from error.__cause__
    if place != CPU:
        move_model(model, list(optimizers.values()), place)
        check_optimizers(model, optimizers)  # they hold the same parameters still
    return place


def name_of_model(model: nn.Module) -> str:
    """Return the class of a model; the program's name where that is a container of PyTorch's, which
    tells nothing."""
    kind = type(model)
    program = Path(sys.argv[0]).stem
    return program if kind.__module__.startswith("torch.") and program else kind.__name__


def describe_data(data: object) -> str:
    """Return what records call the data of a program."""
    is_tensors = isinstance(data, (tuple, list)) and all(isinstance(p, Tensor) for p in data)
    return "tensors" if is_tensors or isinstance(data, Tensor) else type(data).__name__
