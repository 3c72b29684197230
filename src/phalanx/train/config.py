"""The config of one training run, validated where it is made. Needs neither torch nor MPI.

Options are flat, as on the command line, in `--config` files and in `run.json`; those that a run
does not have keep their defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import UserError
from phalanx.jobs.ranks import RankRequest
from phalanx.models.options import completed, is_own_model
from phalanx.models.user_function import FunctionName
from phalanx.parallel.option_groups import check_rules, default_options, refuse
from phalanx.parallel.options import StrategyOptions
from phalanx.run.strategy_options import (
    BITWISE_MICRO_BATCHES,
    MESH_STRATEGIES,
    check_applicable,
    check_bitwise_strategy,
    check_micro_batches,
    check_survived,
)
from phalanx.train.as_options import as_options
from phalanx.train.options import (
    AUTOMATIC,
    PATHS,
    CheckpointOptions,
    CommunicationOptions,
    DataOptions,
    OptimizerOptions,
    ParallelOptions,
    TrainingOptions,
    check_milestones,
    parse_slow_rank,
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    CheckpointOptions,
    CommunicationOptions,
    StrategyOptions,
    ParallelOptions,
    OptimizerOptions,
    DataOptions,
    TrainingOptions,
):
    """All options of one training run.

    Raises: UserError for bad values, and for an option that this run would ignore.
    """

    @classmethod
    def from_options(cls, **options: Any) -> TrainConfig:
        """Return the config of options as a user gives them: `--mesh` alone names its strategy, and
        `--survive` means `--bitwise`, too."""
        if options.get("mesh") and options.get("strategy", "sequential") == "sequential":
            options["strategy"] = "mesh"
        if options.get("survive"):
            check_survived(options.get("strategy", "sequential"))
            options["bitwise"] = True
        return cls(**options)

    def options(self) -> dict[str, Any]:
        """Return all options by name."""
        return {name: getattr(self, name) for name in DEFAULTS}

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
        split = f"--mesh {self.mesh}" if self.mesh else f"--strategy {self.strategy}"
        run = f"--model {self.model} {split}"
        check_rules(self, run)
        self._check_ranks()
        self.check_exclusions()
        check_milestones(self.lr_milestones)
        self._check_strategy(run)
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
                f"--autocast {self.autocast} replaces float32 where that is safe, but --dtype is "
                f"{self.dtype}: leave one of them out"
            )
        self._check_checkpoints()
        self.check_bitwise()
        if self.survive:
            self._check_survival()
        if self.bitwise and self.damaged == "skip":
            raise UserError("--bitwise needs every sample: leave --damaged skip out")
        if self.bitwise and self.per_rank_batch_size is not None:
            raise UserError(
                f"--per-rank-batch-size {self.per_rank_batch_size} makes the global batch depend "
                "on the number of ranks: with --bitwise use --batch-size"
            )
        if self.batch_size is not None and self.per_rank_batch_size is not None:
            raise UserError(
                f"--batch-size {self.batch_size} and --per-rank-batch-size "
                f"{self.per_rank_batch_size} exclude each other: give one of them"
            )

    def _check_ranks(self) -> None:
        """Raise UserError where strategy, mesh and number of ranks do not fit each other."""
        if self.strategy == "sequential" and (self.ranks or 1) != 1:
            raise UserError(
                f"--strategy sequential runs in one process, not on {self.ranks} ranks; "
                f"use --strategy mpi --ranks {self.ranks}, or --threads for more cores"
            )
        if self.strategy == "mesh" and self.mesh is None:
            raise UserError("--strategy mesh needs --mesh, such as --mesh dp=2,tp=2")
        if self.mesh is not None:
            if self.strategy != "mesh":
                raise UserError(
                    f"--mesh {self.mesh} and --strategy {self.strategy} exclude each other: "
                    "leave --strategy out"
                )
            if self.ranks is not None:
                self.mesh_of(self.ranks)
        if self.slow_rank is not None:
            parse_slow_rank(self.slow_rank)

    def _check_strategy(self, run: str) -> None:
        """Raise UserError for an option that the strategy does not have."""
        mesh = self.asked_mesh
        axes = {} if mesh is None else mesh.axes
        if self.bitwise:
            check_bitwise_strategy(self)
        if not (self.model == "gpt" or is_own_model(self.model)):
            words = "--model gpt with --strategy tensor or a mesh with tp"
            refuse(self, ["sequence_parallel"], words, run)
        check_applicable(self, axes, run, is_bitwise=self.bitwise)
        if not self.bitwise and (self.strategy == "pipeline" or "pp" in axes):
            refuse(self, ["autocast"], "strategies and meshes without pipelines", run)

    def _check_checkpoints(self) -> None:
        if self.resume == AUTOMATIC and self.checkpoint_dir is None:
            raise UserError("--resume auto needs --checkpoint-dir, the folder to resume from")
        if self.checkpoint_seconds is not None and self.strategy == "server":
            raise UserError(
                f"--checkpoint-seconds {self.checkpoint_seconds:g} and --strategy server exclude "
                "each other, since workers run out of step: use --checkpoint-steps"
            )

    def _check_survival(self) -> None:
        """Raise UserError for what is lost with a rank."""
        if self.stage is not None:
            raise UserError(
                f"--stage {self.stage} and --survive exclude each other, since the rank that "
                "stages the data may die: leave --stage out"
            )
        check_survived(self.strategy, overlap=self.overlap, spares=self.spares)

    def rank_request(self) -> RankRequest:
        """Return the ranks as whoever starts them takes them."""
        mesh = self.asked_mesh
        is_alone = self.strategy == "sequential"
        return RankRequest(
            ranks=self.ranks,
            default=1 if is_alone else None if mesh is None else mesh.size,
            idle=self.servers if self.strategy == "server" else 0,
            threads=1 if self.bitwise else self.threads,
            spares=self.spares,
            survive=self.survive,
            uses_mpi=self.uses_mpi,
            is_alone=is_alone,
        )

    @property
    def num_ranks(self) -> int:
        """Number of ranks, of a complete config."""
        assert self.ranks is not None, "complete() comes first"
        return self.ranks

    def axes(self) -> dict[str, int]:
        """Return the axes with several ranks, of a run whose mesh divides the model."""
        is_whole = self.strategy not in MESH_STRATEGIES or (
            self.bitwise and self.strategy == "zero"
        )
        return {} if is_whole else self.mesh_of(self.num_ranks).axes

    def global_batch_size(self) -> int:
        """Samples an update over all ranks; raises UserError when a rank would have none."""
        parts = self.data_parts(self.num_ranks)
        if self.per_rank_batch_size is not None:
            return self.per_rank_batch_size * parts
        size = self.default_batch_size if self.batch_size is None else self.batch_size
        with as_options():
            check_micro_batches(None, batch_size=size, num_ranks=parts)
        return size

    def bitwise_micro_batches(self) -> int | None:
        """Return the micro-batches of a full global batch of a bitwise run; None of any other.

        Raises: UserError when ranks, or micro-batches, would be left without samples.
        """
        if not self.bitwise:
            return None
        batch_size = self.global_batch_size()
        number = self.micro_batches or min(BITWISE_MICRO_BATCHES, batch_size)
        with as_options():
            parts = self.data_parts(self.num_ranks)
            return check_micro_batches(number, batch_size=batch_size, num_ranks=parts)

    def num_micro_batches(self) -> int | None:
        """Return into how many micro-batches a global batch is cut; None: one per rank."""
        if self.bitwise:
            return self.bitwise_micro_batches()
        parts = self.data_parts(self.num_ranks)
        if (layout := self.layout(self.mesh_of(self.num_ranks))) is not None:
            return parts * layout.micro_batches
        number = parts * self.accumulate
        return min(self.global_batch_size(), number) if self.accumulate > 1 else None

    def learning_rate(self, global_batch_size: int) -> float:
        """The rate in use. Linear: Goyal et al. 2017, arXiv:1706.02677; square root: Krizhevsky
        2014, arXiv:1404.5997."""
        exponent = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[self.lr_rule]
        return self.lr * math.pow(global_batch_size / self.default_batch_size, exponent)


DEFAULTS = default_options(TrainConfig)
"""Every option by name, with its default."""
