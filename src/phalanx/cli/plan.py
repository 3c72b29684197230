"""`phalanx plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from phalanx.cli.console import Json, interruption_noted, new_console, print_json
from phalanx.cli.train_options import DATA, MODEL, OPTIMIZER
from phalanx.comm.link import Link
from phalanx.data.datasets.catalog import DatasetChoice
from phalanx.errors import UserError
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.record import default_folder
from phalanx.plan.counts import parse_counts
from phalanx.plan.machine import RANGES, Cluster, read_machine, shared_by
from phalanx.plan.measured_rows import read_rows
from phalanx.plan.predict import Target, plan_ranks, reasons_to_doubt
from phalanx.plan.profile import ProgramProfile, read_profile
from phalanx.plan.show import as_json, plan_lines
from phalanx.train.config import TrainConfig
from phalanx.train.options import DataOptions, OptimizerOptions, TrainingOptions

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.bench.plan_validation import CaseResult

MOST_BY_DEFAULT = 1024
VALIDATION = Group("Validation", sort_key=6)
TARGET = Parameter(name="*", group=Group("Target", sort_key=0))


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The machine that is planned for."""

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

    link: str | None = None
    """Plan for the emulated link of `phalanx train --link`, on this machine: 1Gbit/s,1ms."""

    measured: Annotated[tuple[Path, ...], Parameter(name="--with", consume_multiple=True)] = ()
    """Folders of recorded runs on ranks of the target, by which the plan is corrected."""

    overlap: bool | None = None
    """Sum gradients while the backward pass runs. Default: where a network carries them."""


def plan(
    run: Path | None = None,
    /,
    *,
    target: Annotated[TargetOptions, TARGET] = TargetOptions(),  # frozen
    training: Annotated[TrainingOptions, MODEL] = TrainingOptions(),  # noqa: B008
    data: Annotated[DataOptions, DATA] = DataOptions(),  # noqa: B008
    optimizer: Annotated[OptimizerOptions, OPTIMIZER] = OptimizerOptions(),  # noqa: B008
    validate: Annotated[bool, Parameter(negative="", group=VALIDATION)] = False,
    rounds: Annotated[int, Parameter(group=VALIDATION)] = 0,
    json_: Json = False,
) -> None:
    """Predict data-parallel training on a machine that one does not have, with ranges.

    Measures the training here for half a minute, by one process and by one a core that exchange
    nothing, and predicts its step on more ranks: compute, sums of gradients, what the backward pass
    hides of them. Of a recorded run of one rank nothing is measured.

    For example:

        phalanx plan --model cnn --machine hpc.yaml --ranks 1..1024

        phalanx plan runs/train/mine --machine jean-zay-a100 --ranks 1..64

        phalanx plan --model mlp --link 1Gbit/s,1ms --ranks 1,2 --json

        phalanx plan runs/train/mine --machine hpc.yaml --with runs/train/on-two-nodes

        phalanx plan --validate

        phalanx plan --validate --rounds 9 --model cnn

    Parameters
    ----------
    run
        Folder of a recorded run of one rank, or of the profile of an earlier plan.
    validate
        Predict published tables and compare; plan nothing.
    rounds
        Rounds in which the training is calibrated and run on 2 ranks here, too, half a minute each.
    """
    console = new_console(json_)
    options = {**vars(training), **vars(data), **vars(optimizer)}
    if validate:
        _validate(options, rounds, console, json_=json_)
        return
    if rounds:
        raise UserError(f"--rounds {rounds} is for --validate: add that, or leave it out")
    machine = None if target.machine is None else read_machine(target.machine)
    link = None if target.link is None else Link.parse(target.link)
    per_node = _ranks_per_node(target, machine)
    counts = parse_counts(target.ranks or f"1..{_default_ranks(machine, per_node)}")
    _check_target(target, machine, counts, per_node)
    if run is None:
        profile = _measure(
            TrainConfig.from_options(**options), max(counts), console, for_link=link is not None
        )
    else:
        profile = read_profile(run)
    found = _target(target, machine, link, per_node, profile)
    plans = plan_ranks(profile, found, counts, read_rows(target.measured, profile))
    doubts = reasons_to_doubt(profile, found, counts)
    if json_:
        print_json(as_json(profile, found, plans, doubts))
    else:
        console.print("\n".join(plan_lines(profile, found, plans, doubts)), markup=False)


def _validate(options: dict[str, Any], rounds: int, console: Console, *, json_: bool) -> None:
    """Compare predictions with published tables, and with runs of this machine."""
    from phalanx.plan.show import validation_json, validation_lines

    if rounds < 0:
        raise UserError(f"--rounds must not be negative: {rounds}")
    here: list[CaseResult] = []
    if rounds:
        from phalanx.bench.plan_validation import result_lines, validate_here

        config = _complete(TrainConfig.from_options(**options), console)
        folder = default_folder("plan", "validate")
        with interruption_noted(console, f"records kept in {folder}"):
            here = validate_here(config, rounds, folder, console)
        console.print("\n".join(result_lines(here, rounds)), markup=False)
    if json_:
        print_json({"here": [case._asdict() for case in here], "published": validation_json()})
    console.print("\n".join(validation_lines()), markup=False)


def _ranks_per_node(options: TargetOptions, machine: Cluster | None) -> int:
    if options.ranks_per_node is not None:
        low, high, _ = RANGES["ranks_per_node"]
        if not low <= options.ranks_per_node <= high:
            raise UserError(
                f"--ranks-per-node must be at least {low}, and at most {high}, not "
                f"{options.ranks_per_node}"
            )
        return options.ranks_per_node
    return usable_cores() if machine is None else machine.ranks_per_node


def _default_ranks(machine: Cluster | None, per_node: int) -> int:
    if machine is None or machine.network is None:
        return per_node
    return min(MOST_BY_DEFAULT, machine.nodes * per_node)


def _check_target(
    options: TargetOptions, machine: Cluster | None, counts: list[int], per_node: int
) -> None:
    """Raise UserError for ranks that the target has no place or no network for."""
    if options.speed is not None and not 0.001 <= options.speed <= 1000:
        raise UserError(f"--speed must be from 0.001 to 1000, not {options.speed:g}")
    if options.link is not None and machine is not None:
        raise UserError("--link is emulated on this machine: leave --machine out, or --link")
    most = max(counts)
    if most <= per_node:
        return
    if machine is None:
        raise UserError(
            f"--ranks {options.ranks}: this machine has a core each for {per_node}; for more name "
            f"a machine with a network, --machine FILE, or give --ranks 1..{per_node}"
        )
    if machine.network is None:
        raise UserError(
            f"--machine {options.machine} states no network, and {most} ranks are on "
            f"{-(-most // per_node)} nodes: add network: {{bandwidth_bytes_per_s: …}} to the file, "
            f"or give --ranks 1..{per_node}"
        )


def _target(
    options: TargetOptions,
    machine: Cluster | None,
    link: Link | None,
    per_node: int,
    profile: ProgramProfile,
) -> Target:
    is_same = machine is None or machine.processor == profile.processor
    speed = options.speed
    if speed is None and machine is not None and not is_same:
        ours, theirs = profile.memory_bytes_per_s, machine.memory_bytes_per_s
        speed = theirs[max(theirs)] / ours if ours and theirs else None
    return Target(
        machine=None if machine is None else shared_by(machine, per_node),
        ranks_per_node=per_node,
        speed=speed or 1.0,
        is_same_processor=is_same,
        link=link,
        overlap=options.overlap,
    )


SMALLEST_SHARE = 16
"""Ranks of which the smallest batch that is measured is a share, at most."""


def _complete(config: TrainConfig, console: Console) -> TrainConfig:
    """Fill in the defaults of a training by one process of one thread, and print which data it has.

    Raises: UserError for options that a plan does not heed.
    """
    from phalanx.train.run import complete

    if config.per_rank_batch_size is not None:
        raise UserError(
            f"--per-rank-batch-size {config.per_rank_batch_size}: a plan divides one global batch "
            "among the ranks: give --batch-size"
        )
    if config.device != "cpu":
        raise UserError(f"--device {config.device}: a profile is measured on the CPU: leave it out")
    config, choice = complete(replace(config, threads=1), None)
    if isinstance(choice, DatasetChoice):
        console.print(choice.reason, markup=False)
    return config


def _measure(
    config: TrainConfig, most_ranks: int, console: Console, *, for_link: bool
) -> ProgramProfile:
    from phalanx.bench.profile import measure_profile

    config = _complete(config, console)
    whole, cores = config.global_batch_size(), usable_cores()
    smallest = max(1, whole // min(SMALLEST_SHARE, max(2, most_ranks)))
    folder = default_folder("plan", config.model.replace("/", "-").replace(":", "-"))
    with interruption_noted(console, f"records kept in {folder}"):
        profile = measure_profile(
            config,
            folder,
            batches=sorted({smallest, whole}),
            at_once=cores,
            console=console,
            for_link=for_link,
        )
    console.print(f"profile in {folder}; phalanx plan {folder} plans by it again", markup=False)
    return profile
