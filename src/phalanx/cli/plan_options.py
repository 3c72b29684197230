"""The options of `phalanx plan`: the target, and the strategy as `phalanx train` has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from phalanx.cli.train_options import LOCAL, MESH, MPI, PIPELINE, SHARD, TENSOR
from phalanx.errors import UserError
from phalanx.parallel.option_groups import check_rules, refuse
from phalanx.parallel.options import (
    BackendOptions,
    LocalOptions,
    MpiOptions,
    PipelineOptions,
    ShardOptions,
    StrategyOptions,
    TensorOptions,
)
from phalanx.plan.sums import CODINGS
from phalanx.run.strategy_options import check_applicable

TARGET = Parameter(name="*", group=Group("Target", sort_key=0))
VALIDATION = Parameter(name="*", group=Group("Validation", sort_key=6))
STRATEGY = Parameter(name="*", group=Group("Parallelism", sort_key=4))
NOT_PLANNED = ("all_reduce", "bucket_mb", "tensor_plan", "sequence_parallel", "backend")
"""Options of which no plan knows what they change."""


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The machine that is planned for, and what is asked of it."""

    machine: str | None = None
    """YAML file of a machine, as `phalanx bench machine` writes it, or one that ships, by name.
    Default: this machine, with its memory alone."""

    ranks: str | None = None
    """Numbers of ranks: 1..1024 for powers of two, or 1,2,6,12. Default: to as many as the machine
    has, at most 1024."""

    ranks_per_node: int | None = None
    """Ranks of a node. Default: as the machine file says; here one a core."""

    speed: float | None = None
    """Times the speed of this machine's processor. Default: by the rates of both memories, else as
    fast."""

    what_if: str | None = None
    """Changes of the machine: bandwidth=2x,ranks_per_node=4; also latency, cores, memory, storage,
    nodes, price."""

    measured: Annotated[tuple[Path, ...], Parameter(name="--with", consume_multiple=True)] = ()
    """Folders of recorded runs on ranks of the target, by which the plan is corrected."""

    layouts: Annotated[bool, Parameter(negative="")] = False
    """Search the layouts of the most ranks, too: strategies, meshes, schedules, micro-batches."""

    budget: str | None = None
    """Node hours that may be spent, such as 500h: names the ranks that they are enough for."""

    trace: Annotated[bool, Parameter(negative="")] = False
    """Write records and trace of the imagined run on the most ranks: for `phalanx report` and
    `phalanx trace`."""

    def budget_hours(self) -> float | None:
        """Return the node hours. Raises: UserError for what is no number of hours."""
        if self.budget is None:
            return None
        try:
            hours = float(self.budget.strip().removesuffix("h"))
        except ValueError:
            hours = -1.0
        if not 0 < hours < 1e12:
            raise UserError(f"--budget {self.budget}: write node hours, such as 500h")
        return hours


@dataclass(frozen=True, kw_only=True)
class StrategyName:
    """The strategy that is planned."""

    strategy: Literal["mpi", "shared", "local", "zero", "tensor", "pipeline", "mesh"] = "mpi"
    """Strategy of `phalanx train`; --mesh alone means `mesh`."""


@dataclass(frozen=True, kw_only=True)
class PlannedStrategy:
    """A strategy with its options, in the panels of `phalanx train`."""

    name: Annotated[StrategyName, STRATEGY] = field(default_factory=StrategyName)
    mpi: Annotated[MpiOptions, MPI] = field(default_factory=MpiOptions)
    local: Annotated[LocalOptions, LOCAL] = field(default_factory=LocalOptions)
    backend: Annotated[BackendOptions, MESH] = field(default_factory=BackendOptions)
    shard: Annotated[ShardOptions, SHARD] = field(default_factory=ShardOptions)
    pipeline: Annotated[PipelineOptions, PIPELINE] = field(default_factory=PipelineOptions)
    tensor: Annotated[TensorOptions, TENSOR] = field(default_factory=TensorOptions)

    def options(self) -> StrategyOptions:
        """Return all options.

        Raises: UserError for one that the strategy does not have, or of which a plan does not know
                what it changes.
        """
        given = {k: v for group in vars(self).values() for k, v in vars(group).items()}
        if given["mesh"] is not None and given["strategy"] == "mpi":
            given["strategy"] = "mesh"
        options = StrategyOptions(**given)
        run, mesh = f"--strategy {options.strategy}", options.asked_mesh
        check_rules(options, run)
        check_applicable(options, {} if mesh is None else mesh.axes, run)
        refuse(options, NOT_PLANNED, "phalanx train; a plan takes its default", "phalanx plan")
        if options.compress not in ("none", *CODINGS):
            raise UserError(
                f"--compress {options.compress}: plans know {', '.join(CODINGS)}, whose bytes do "
                "not depend on the gradients; measure others by phalanx study compression"
            )
        return options


@dataclass(frozen=True, kw_only=True)
class ValidationOptions:
    """Comparison with what was measured."""

    validate: Annotated[bool, Parameter(negative="")] = False
    """Predict published tables and compare; plan nothing."""

    rounds: int = 0
    """Rounds in which the training is calibrated and run here in all ways, of 2 minutes each."""

    here: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = ()
    """Files of such rounds, printed with --json, which are shown beside the tables; or their
    folders, whose cases are predicted anew."""

    page: Path | None = None
    """File into which the comparison is written as a page of Markdown."""

    def words(self) -> list[str]:
        """Return the options that make the page again."""
        here = ["--here", *map(str, self.here)] if self.here else []
        return [*here, "--page", str(self.page)]

    def check_unused(self) -> None:
        """Raise UserError for an option that is of a comparison alone."""
        here = " ".join(map(str, self.here))
        for name, value in {"rounds": self.rounds, "here": here, "page": self.page}.items():
            if value:
                raise UserError(f"--{name} {value} is for --validate: add that, or leave it out")
