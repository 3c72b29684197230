"""The config of one training run, validated where it is made. Needs neither torch nor MPI.

On the command line, in `--config` files and in `run.json` options are flat; here a group of options
that only some runs have is None in the others. `from_options` and `options` convert.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.errors import UserError
from phalanx.models.options import completed
from phalanx.models.user_function import FunctionName
from phalanx.parallel.mesh import Mesh, check_mesh, parse_mesh
from phalanx.parallel.mesh_options import (
    BackendOptions,
    MeshOptions,
    PipelineOptions,
    ShardOptions,
    TensorOptions,
)
from phalanx.parallel.option_groups import GivenOptions, default_options, flatten
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.replica_options import LocalOptions, MpiOptions, ServerOptions
from phalanx.train.data_options import DataOptions
from phalanx.train.optimizer_options import OptimizerOptions, check_milestones
from phalanx.train.parallel_options import CommunicationOptions, ParallelOptions, parse_slow_rank
from phalanx.train.strategy_options import (
    BitwiseMpiOptions,
    BitwiseOptions,
    BitwisePipelineOptions,
    StrategyOptions,
    check_survived,
    take_strategy_options,
)
from phalanx.train.training_options import AUTOMATIC, CheckpointOptions, TrainingOptions

DEFAULTS = default_options(
    TrainingOptions,
    DataOptions,
    OptimizerOptions,
    ParallelOptions,
    ServerOptions,
    LocalOptions,
    BackendOptions,
    ShardOptions,
    PipelineOptions,
    TensorOptions,
    MpiOptions,
    CommunicationOptions,
    CheckpointOptions,
)
"""Every flat option by name, with its default."""

PATHS = ("data_root", "data", "stage", "checkpoint_dir", "resume", "run_dir")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    CheckpointOptions,
    CommunicationOptions,
    ParallelOptions,
    OptimizerOptions,
    DataOptions,
    TrainingOptions,
):
    """All options of one training run; those of other strategies are not among them."""

    strategy_options: StrategyOptions

    @classmethod
    def from_options(cls, **options: Any) -> TrainConfig:
        """Return the config of flat options; the others have their defaults.

        Raises: UserError for bad values, and for an option that this run would ignore.
        """
        mesh = options.get("mesh")
        if mesh is not None and options.get("strategy", "sequential") == "sequential":
            options["strategy"] = "mesh"
        wanted = {**DEFAULTS, **options}
        split = f"--mesh {mesh}" if mesh else f"--strategy {wanted['strategy']}"
        given = GivenOptions(options, f"--model {wanted['model']} {split}")
        training, parallel = given.take(TrainingOptions), given.take(ParallelOptions)
        _check_parallel(parallel, mesh)
        if parallel.survive:
            check_survived(parallel.strategy)
            parallel = replace(parallel, bitwise=True)
        data, communication = given.take(DataOptions), given.take(CommunicationOptions)
        data.check_exclusions()
        optimizer = given.take(OptimizerOptions)
        check_milestones(optimizer.lr_milestones)
        chosen = take_strategy_options(
            given, parallel.strategy, mesh, training.model, is_bitwise=parallel.bitwise
        )
        if isinstance(chosen, MeshOptions) and chosen.pipeline is not None:
            words = "strategies and meshes without pipelines"
            given.refuse("autocast", communication.autocast, "none", words)
        common = (training, data, optimizer, parallel, communication, given.take(CheckpointOptions))
        given.check_empty()
        values = {name: value for group in common for name, value in vars(group).items()}
        return cls(**values, strategy_options=chosen)

    def options(self) -> dict[str, Any]:
        """Return all options, flat; those that the run has no use for have their defaults."""
        return {**DEFAULTS, **{k: v for k, v in flatten(self) if k in DEFAULTS}}

    def as_record(self) -> dict[str, object]:
        """The options as plain values, for `run.json`."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in self.options().items()}

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> TrainConfig:
        """The inverse of `as_record`."""
        values: dict[str, Any] = {
            k: Path(str(v)) if k in PATHS and v is not None else v for k, v in record.items()
        }
        if "lr_milestones" in values:
            values["lr_milestones"] = tuple(values["lr_milestones"])
        return cls.from_options(**values)

    def __post_init__(self) -> None:
        completed(self.model, self.model_options)
        if self.loss is not None:
            FunctionName.parse("--loss", self.loss)
            if self.label_smoothing:
                raise UserError(
                    f"--label-smoothing {self.label_smoothing:g} is for the built-in cross "
                    f"entropy, not for --loss {self.loss}: leave one of them out"
                )
        if self.autocast != "none" and self.dtype != "float32":
            raise UserError(
                f"--autocast {self.autocast} takes the place of float32 where that is safe, and "
                f"--dtype is {self.dtype}: leave one of them out"
            )
        self._check_checkpoints()
        self.check_bitwise()
        if self.survive:
            self._check_survival()
        if self.bitwise and self.damaged == "skip":
            raise UserError("--bitwise trains with every sample: leave --damaged skip out")
        if self.bitwise and self.per_rank_batch_size is not None:
            raise UserError(
                f"--per-rank-batch-size {self.per_rank_batch_size} makes the global batch depend "
                "on the number of ranks: with --bitwise give --batch-size"
            )
        if self.batch_size is not None and self.per_rank_batch_size is not None:
            raise UserError(
                f"--batch-size {self.batch_size} and --per-rank-batch-size "
                f"{self.per_rank_batch_size} exclude each other: give the global or the local one"
            )

    def _check_checkpoints(self) -> None:
        if self.resume == AUTOMATIC and self.checkpoint_dir is None:
            raise UserError("--resume auto needs --checkpoint-dir, the folder to resume from")
        if self.checkpoint_seconds is not None and self.strategy == "server":
            raise UserError(
                f"--checkpoint-seconds {self.checkpoint_seconds:g} and --strategy server exclude "
                "each other: workers are not in step; take --checkpoint-steps"
            )

    def _check_survival(self) -> None:
        """Raise UserError for what is lost with a rank."""
        if self.stage is not None:
            raise UserError(
                f"--stage {self.stage}: the rank of a node that copies its data may die: with "
                "--survive leave it out"
            )
        if self.spares and self.strategy != "mpi":
            raise UserError(
                f"--spares {self.spares} and --strategy {self.strategy} exclude each other: it "
                "divides the optimizer's state among the ranks that compute; take --strategy mpi"
            )
        options = self.strategy_options
        if isinstance(options, BitwiseMpiOptions) and options.overlap == "on":
            raise UserError(
                "--overlap on and --survive exclude each other: what a lost rank has not computed "
                "is added after the last backward pass; leave --overlap out"
            )

    def mesh_of(self, ranks: int) -> Mesh:
        """Return the mesh of `ranks` ranks; all along the data axis for what has no mesh.

        Raises: UserError when the axes do not multiply up to `ranks`.
        """
        match self.strategy_options:
            case MeshOptions() as options:
                return options.mesh_of(ranks)
            case BitwisePipelineOptions():
                return Mesh(pp=ranks)
            case _:
                return Mesh(dp=ranks)

    def data_parts(self, ranks: int) -> int:
        """Return into how many shards a global batch is divided.

        Raises: UserError when no worker is left beside the servers.
        """
        options = self.strategy_options
        if isinstance(options, ServerOptions):
            return options.num_workers(ranks)
        return self.mesh_of(ranks).data_size

    def global_batch_size(self, ranks: int) -> int:
        """Samples an update over `ranks` ranks; raises UserError when a rank would have none."""
        parts = self.data_parts(ranks)
        if self.per_rank_batch_size is not None:
            return self.per_rank_batch_size * parts
        size = self.default_batch_size if self.batch_size is None else self.batch_size
        if size < parts:
            raise UserError(
                f"a global batch of {size} cannot be split over {parts} ranks: "
                f"use --batch-size {parts} or more"
            )
        return size

    def bitwise_micro_batches(self, ranks: int) -> int | None:
        """Return the micro-batches of a full global batch of a bitwise run; None of any other.

        Raises: UserError when ranks, or micro-batches, would be left without samples.
        """
        options = self.strategy_options
        if not isinstance(options, BitwiseOptions):
            return None
        batch_size = self.global_batch_size(ranks)
        number, least = options.number(batch_size), self.data_parts(ranks)
        if not least <= number <= batch_size:
            raise UserError(
                f"--micro-batches {number} does not fit: with {ranks} rank{'s' * (ranks > 1)} and "
                f"a global batch of {batch_size} it is from {least} to {batch_size}"
            )
        return number

    def pipeline_layout(self, ranks: int) -> PipelineLayout | None:
        """Return the layout of the pipeline; None where the run has none, or one stage.

        Raises: UserError when the schedule cannot run with these numbers.
        """
        mesh = self.mesh_of(ranks)
        match self.strategy_options:
            case BitwisePipelineOptions() as options:
                number = self.bitwise_micro_batches(ranks)
                return replace(options, micro_batches=number).layout(mesh)
            case MeshOptions() as on_mesh:
                return on_mesh.layout(mesh)
            case _:
                return None

    def learning_rate(self, global_batch_size: int) -> float:
        """The rate in use. Linear: Goyal et al. 2017, arXiv:1706.02677; square root: Krizhevsky
        2014, arXiv:1404.5997."""
        exponent = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[self.lr_rule]
        return self.lr * math.pow(global_batch_size / self.default_batch_size, exponent)


def _check_parallel(options: ParallelOptions, mesh: str | None) -> None:
    if options.strategy == "sequential" and (options.ranks or 1) != 1:
        raise UserError(
            f"--strategy sequential runs in one process, not on {options.ranks} ranks; "
            f"use --strategy mpi --ranks {options.ranks}, or --threads for more cores"
        )
    if options.strategy == "mesh" and mesh is None:
        raise UserError("--strategy mesh needs --mesh, such as --mesh dp=2,tp=2")
    if mesh is not None:
        if options.strategy != "mesh":
            raise UserError(
                f"--mesh {mesh} and --strategy {options.strategy} exclude each other: "
                "leave --strategy out"
            )
        axes = parse_mesh(mesh)
        if options.ranks is not None:
            check_mesh(axes, options.ranks)
    if options.slow_rank is not None:
        parse_slow_rank(options.slow_rank)
