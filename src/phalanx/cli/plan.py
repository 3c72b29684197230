"""`phalanx plan`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from phalanx.cli.console import Json, interruption_noted, new_console, print_json
from phalanx.cli.plan_options import (
    TARGET,
    VALIDATION,
    PlannedStrategy,
    TargetOptions,
    ValidationOptions,
)
from phalanx.cli.train_options import DATA, MODEL, OPTIMIZER
from phalanx.data.datasets.catalog import DatasetChoice
from phalanx.errors import UserError
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.record import default_folder, this_command
from phalanx.parallel.options import StrategyOptions
from phalanx.plan.changes import machine_with
from phalanx.plan.counts import parse_counts
from phalanx.plan.imagined_run import TRACED_RANKS, write_imagined_run
from phalanx.plan.machine import RANGES, Cluster, check_numbers, read_machine, shared_by
from phalanx.plan.measured_rows import read_rows
from phalanx.plan.predict import Target
from phalanx.plan.profile import ProgramProfile, read_profile
from phalanx.plan.record import make_plan
from phalanx.plan.show import budget_line, plan_lines
from phalanx.records.files import write_record
from phalanx.train.config import DEFAULTS, TrainConfig
from phalanx.train.options import DataOptions, OptimizerOptions, TrainingOptions

if TYPE_CHECKING:
    from rich.console import Console

MOST_BY_DEFAULT = 1024


def plan(
    *words: str,
    target: Annotated[TargetOptions, TARGET] = TargetOptions(),  # noqa: B008
    training: Annotated[TrainingOptions, MODEL] = TrainingOptions(),  # noqa: B008
    data: Annotated[DataOptions, DATA] = DataOptions(),  # noqa: B008
    optimizer: Annotated[OptimizerOptions, OPTIMIZER] = OptimizerOptions(),  # noqa: B008
    strategy: Annotated[PlannedStrategy, Parameter(name="*")] = PlannedStrategy(),  # noqa: B008
    validation: Annotated[ValidationOptions, VALIDATION] = ValidationOptions(),  # noqa: B008
    json_: Json = False,
) -> None:
    """Predict a training on a machine that one does not have, with ranges.

    Measures the training here for half a minute, by one process and by one a core that exchange
    nothing, and predicts it on more ranks, by any strategy but servers: compute, messages, what the
    backward pass hides of them, memory, time outside the steps. Of a recorded run of one rank
    nothing is measured. A program of phalanx.start makes some steps and ends; it writes neither
    records nor checkpoints.

    For example:

        phalanx plan --model cnn --machine hpc.yaml --ranks 1..1024

        phalanx plan train.py --machine hpc.yaml -- --lr 0.1

        phalanx plan runs/train/mine --machine jean-zay-a100 --ranks 1..64

        phalanx plan --model mlp --link 1Gbit/s,1ms --ranks 1,2 --json

        phalanx plan runs/train/mine --machine hpc.yaml --with runs/train/on-two-nodes

        phalanx plan --validate

        phalanx plan --validate --rounds 9 --model cnn

        phalanx plan --validate --here rounds.json --page validation.md

    Parameters
    ----------
    words
        Folder of a recorded run of one rank, or of the profile of an earlier plan; or a program,
        `program.py`, and behind `--` its arguments, or `-- -m module …`.
    """
    console = new_console(json_)
    options = {**vars(training), **vars(data), **vars(optimizer)}
    if validation.validate:
        _validate(options, validation, console, json_=json_)
        return
    validation.check_unused()
    machine = None if target.machine is None else read_machine(target.machine)
    if target.what_if is not None:
        machine = machine_with(_stated(machine), target.what_if)
    chosen, budget = strategy.options(), target.budget_hours()
    per_node = _ranks_per_node(target, machine)
    counts = parse_counts(target.ranks or f"1..{_default_ranks(machine, per_node)}")
    _check_target(target, machine, counts, per_node, chosen.link)
    folder = default_folder("plan", _name_of(words, training.model))
    profile = _profile(words, options, max(counts), folder, console, for_link=bool(chosen.link))
    is_given = any(word.partition("=")[0] == "--epochs" for word in this_command())
    epochs = training.epochs if is_given else profile.epochs
    found = _target(target, machine, chosen, per_node, profile, epochs)
    made = make_plan(
        profile,
        found,
        counts,
        read_rows(target.measured, profile, chosen.strategy),
        command=shlex.join(this_command()),
        with_layouts=target.layouts,
    )
    write_record(folder, made)
    if json_:
        print_json(msgspec.to_builtins(made))
    else:
        lines = [*plan_lines(made), f"page: phalanx report {folder}"]
        lines += [budget_line(made, budget)] if budget is not None else []
        console.print("\n".join(lines), markup=False)
    if target.trace:
        _imagine(folder / f"ranks-{max(counts)}", profile, found, max(counts), console)


def _imagine(
    folder: Path, profile: ProgramProfile, target: Target, ranks: int, console: Console
) -> None:
    """Write the run that nobody has made."""
    write_imagined_run(folder, profile, target, ranks, command=shlex.join(this_command()))
    kept = min(ranks, TRACED_RANKS)
    console.print(
        f"imagined run: phalanx report {folder}; trace of {kept} of its {ranks} ranks: phalanx "
        f"trace {folder}",
        markup=False,
    )


def _validate(
    options: dict[str, Any], validation: ValidationOptions, console: Console, *, json_: bool
) -> None:
    """Compare predictions with published tables, and with runs of this machine."""
    from rich.markdown import Markdown

    from phalanx.plan.published import predicted_rows
    from phalanx.plan.validation import (
        as_builtins,
        read_measured,
        validation_page,
    )

    rounds, folders = validation.rounds, [path for path in validation.here if path.is_dir()]
    measured = read_measured(path for path in validation.here if path not in folders)
    if folders:
        from phalanx.bench.plan_validation import results_of

        again = [case for folder in folders for case in results_of(folder)]
        measured = msgspec.structs.replace(measured, here=[*measured.here, *again])
    if rounds < 0:
        raise UserError(f"--rounds must not be negative: {rounds}")
    if rounds:
        from phalanx.bench.plan_validation import validate_here

        config = _complete(TrainConfig.from_options(**options), console)
        folder = default_folder("plan", "validate")
        with interruption_noted(console, f"records kept in {folder}"):
            found = validate_here(config, rounds, folder, console)
        measured = msgspec.structs.replace(measured, here=[*measured.here, *found])
    cases = predicted_rows()
    if validation.page is not None:
        page = validation_page(cases, measured, validation.words())
        try:
            validation.page.write_text(page)
        except OSError as error:
            raise UserError(
                f"--page {validation.page} cannot be written: {error.strerror}"
            ) from error
    if json_:
        print_json(as_builtins(cases, measured))
    console.print(Markdown(validation_page(cases, measured)))


def _ranks_per_node(options: TargetOptions, machine: Cluster | None) -> int:
    if machine is not None and options.what_if is not None:
        check_numbers(f"--what-if {options.what_if}", msgspec.to_builtins(machine))
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


def _stated(machine: Cluster | None) -> Cluster:
    if machine is None:
        raise UserError("--what-if changes a machine: name it, too: --machine FILE")
    return machine


def _check_target(
    options: TargetOptions,
    machine: Cluster | None,
    counts: list[int],
    per_node: int,
    link: str | None,
) -> None:
    """Raise UserError for ranks that the target has no place or no network for."""
    if options.speed is not None and not 0.001 <= options.speed <= 1000:
        raise UserError(f"--speed must be from 0.001 to 1000, not {options.speed:g}")
    if link is not None and machine is not None:
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
    strategy: StrategyOptions,
    per_node: int,
    profile: ProgramProfile,
    epochs: int,
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
        options=strategy,
        epochs=epochs,
    )


def _name_of(words: Sequence[str], model: str) -> str:
    """Return the name of what is planned, for its folder."""
    name = Path(words[words[0] == "-m"]).stem if words else model
    return re.sub(r"[^\w.]+", "-", re.sub(r"^\d{8}-\d{6}-\d{6}-", "", name))


def _profile(
    words: Sequence[str],
    options: dict[str, Any],
    most_ranks: int,
    folder: Path,
    console: Console,
    *,
    for_link: bool,
) -> ProgramProfile:
    """Return the profile of what is planned: read from a folder, or measured now into `folder`.

    Raises: UserError for options of a built-in model beside a folder or a program.
    """
    is_program = bool(words) and (words[0] == "-m" or words[0].endswith(".py"))
    if words:
        given = [n for n, value in options.items() if value != DEFAULTS[n] and n != "epochs"]
        if given:
            mend = ", or put it behind -- if it is the program's" if is_program else ""
            raise UserError(
                f"--{given[0].replace('_', '-')} is for the built-in models: leave it out{mend}"
            )
        if not is_program and len(words) > 1:
            raise UserError(f"phalanx plan takes one folder, or program.py: not {words[1]}, too")
    if words and not is_program:
        return read_profile(Path(words[0]))
    if is_program and words[0] != "-m" and not Path(words[0]).is_file():
        raise UserError(f"phalanx plan: there is no file {words[0]}")
    from phalanx.bench.profile import TrainingOfOptions, TrainingOfProgram, measure_profile

    training: TrainingOfOptions | TrainingOfProgram
    if is_program:
        training = TrainingOfProgram(words)
    else:
        config = _complete(TrainConfig.from_options(**options), console)
        training = TrainingOfOptions(config)
    with interruption_noted(console, f"records kept in {folder}"):
        profile = measure_profile(
            training,
            folder,
            most_ranks=most_ranks,
            at_once=usable_cores(),
            console=console,
            for_link=for_link,
        )
    console.print(f"profile in {folder}; phalanx plan {folder} plans by it again", markup=False)
    return profile


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
