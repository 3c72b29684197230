"""Choice of the strategy of a program's run, Phalanx's or the program's, and its construction."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist

from phalanx.comm.faults import is_fault_tolerant
from phalanx.errors import UserError
from phalanx.jobs.survival import num_spares
from phalanx.parallel.make import (
    BITWISE,
    STRATEGIES,
    JobRanks,
    StrategySetting,
    closing_where_refused,
)
from phalanx.parallel.mesh import AXES, Mesh
from phalanx.parallel.option_groups import check_rules
from phalanx.parallel.options import StrategyName, StrategyOptions
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.world_group import WorldGroup
from phalanx.run.device import CPU
from phalanx.run.options import misfit, shown
from phalanx.run.randomness import seed_micro_batch
from phalanx.run.strategy_options import (
    MESH_STRATEGIES,
    check_applicable,
    check_bitwise_strategy,
    check_full_norm,
    check_survived,
)

_OPTION = re.compile(
    r"--([a-z]+(?:-[a-z]+)*)(?![a-z=-])"
    r"(?: (none|auto|on|off|mpi|shared|gloo|zero|local|server|sequential|fp16|bf16|"
    r"tensor|pipeline|mesh|int8|powersgd|topk|average|nesterov|library|naive|direct|ring|tree|"
    r"halving|gpipe|1f1b|interleaved|zero-bubble|[\d.]+))?"
)


OF_LAUNCH = ("survive", "spares", "restarts")
"""Options of `phalanx launch`, which no program has."""


@contextmanager
def as_arguments() -> Iterator[None]:
    """Let errors within name arguments of Python in place of options of the command line."""
    try:
        yield
    except UserError as error:
        raise UserError(_OPTION.sub(_argument, str(error))) from error


def _argument(option: re.Match[str]) -> str:
    name, value = option[1].replace("-", "_"), option[2]
    if name in OF_LAUNCH:
        return option[0]
    if name == "bitwise":
        return "bitwise=True"
    if value is None:
        return f"{name}="
    return f"{name}={value}" if value[0].isdigit() else f'{name}="{value}"'


AskedStrategy = Literal["auto", StrategyName]
OF_ONE_OPTIMIZER = ("shared", "gloo", "server", *MESH_STRATEGIES)
TENSOR_PLAN, STAGES = "tensor_plan", "pipeline_stages"


@dataclass(frozen=True, kw_only=True)
class StrategyChoice:
    """A strategy and its options, which fit each other."""

    name: StrategyName | Literal["own"]
    label: str
    """Name for records: the one that was asked for, also where one rank takes `sequential`."""
    options: StrategyOptions = field(default_factory=StrategyOptions)
    tensor_plan: object = None
    """Tensor plan in place of the model's, see `tensor.tensor_plan_of`."""
    stages: Sequence[str] | None = None
    """Stages in place of the model's, see `chain.layers_of`."""
    mesh: Mesh
    """Axes of the ranks; all along the data axis where no model is divided."""
    data_parts: int
    """Parts into which the ranks cut each global batch: ranks that divide a model see the same
    samples, and servers none."""
    device: torch.device = CPU
    is_bitwise: bool = False
    """True if results must not depend on the number of ranks to the bit."""
    make_own: Callable[..., Strategy] | None = None
    """Makes the program's strategy from ranks and `step`, in place of a named one."""


def choose_strategy(
    name: str | OwnStrategy,
    options: Mapping[str, object],
    *,
    num_ranks: int,
    num_optimizers: int,
    clip_norm: float | None,
    device: torch.device,
    is_bitwise: bool,
) -> StrategyChoice:
    """Return the strategy of a run of `num_ranks` ranks, and its options. One rank, which has
    nothing to send, takes `sequential` for all but `local`.

    name: as `phalanx.start` has it. options: of the strategy, by the names of the command line's.
    clip_norm: to which gradients are clipped; None: they are not.
    Raises: UserError for a strategy or an option that does not fit.
    """
    is_on_gpu = device != CPU
    if not isinstance(name, str):
        check_own(name, is_bitwise=is_bitwise, is_on_gpu=is_on_gpu)
        return StrategyChoice(
            name="own",
            label=name_of(name),
            mesh=Mesh(dp=num_ranks),
            data_parts=num_ranks,
            make_own=partial(make_own, name, options),
        )
    chosen: Any = "mpi" if name == "auto" else name
    _check_name(name, num_ranks=num_ranks, num_optimizers=num_optimizers)
    with as_arguments():
        if not is_bitwise and (chosen == "shared" or num_ranks > 1):
            check_full_norm(chosen, clip_norm)
        known = _take_known(chosen, options)
        if is_bitwise:
            check_bitwise(known, is_on_gpu=is_on_gpu)
        mesh = _check_strategy(known, num_ranks, is_bitwise=is_bitwise)
        data_parts = known.data_parts(num_ranks) if num_ranks > 1 else 1
    if options.get(TENSOR_PLAN) is not None and mesh.tp == 1 and num_ranks > 1:
        raise UserError('tensor_plan= is for strategy="tensor" and meshes with tp')
    if options.get(STAGES) is not None and mesh.pp == 1 and num_ranks > 1:
        raise UserError('pipeline_stages= is for strategy="pipeline" and meshes with pp')
    if is_on_gpu and (num_ranks > 1 or chosen == "local"):
        _check_on_gpu(chosen, options, num_optimizers)
    label = "sequential" if name == "auto" and num_ranks == 1 else chosen
    if num_ranks == 1 and chosen != "local":  # the same numbers, without MPI
        chosen = "sequential"
    return StrategyChoice(
        name=chosen,
        label=label,
        options=known,
        tensor_plan=options.get(TENSOR_PLAN),
        stages=_names_in(options.get(STAGES)),
        mesh=mesh,
        data_parts=data_parts,
        device=device,
        is_bitwise=is_bitwise,
    )


def _check_name(name: str, *, num_ranks: int, num_optimizers: int) -> None:
    """Raises: UserError for a strategy that is none, or is for other ranks or optimizers."""
    if name not in get_args(AskedStrategy):
        names = ", ".join(get_args(AskedStrategy))
        raise UserError(f"strategy={name!r} is not one of {names}")
    if name == "sequential" and num_ranks > 1:
        raise UserError(
            f'strategy="sequential" is for one process, but there are {num_ranks} ranks'
        )
    if name in OF_ONE_OPTIMIZER and num_optimizers > 1:
        raise UserError(
            f'strategy="{name}" takes one optimizer, but there are {num_optimizers}: use '
            'strategy="mpi"'
        )


def _take_known(name: StrategyName, options: Mapping[str, object]) -> StrategyOptions:
    """Return the options that are plain values. Raises: UserError for one that is none."""
    kinds = {each.name: each.type for each in fields(StrategyOptions) if each.name != "strategy"}
    del kinds["micro_batches"]
    if "micro_batches" in options:
        raise UserError("strategy_options: micro_batches= is an argument of phalanx.start")
    known = sorted([*kinds, STAGES])
    if unknown := [option for option in options if option not in known]:
        raise UserError(f"strategy_options: {unknown[0]!r} is not one of {', '.join(known)}")
    plain: dict[str, Any] = {k: v for k, v in options.items() if k not in (TENSOR_PLAN, STAGES)}
    for option, value in plain.items():
        if words := misfit(value, kinds[option]):
            raise UserError(f"{option}={shown(value)} {words}")
    if name == "zero":
        plain.setdefault("zero_stage", 1)
    return StrategyOptions(strategy=name, **plain)


def _check_strategy(options: StrategyOptions, num_ranks: int, *, is_bitwise: bool) -> Mesh:
    """Return the mesh of the ranks.

    Raises: UserError for options of another strategy, and for axes that are not those of the ranks.
    """
    name = options.strategy
    run = f"strategy={name!r}"
    check_rules(options, run)
    check_applicable(options, AXES if name == "mesh" else (), run, is_bitwise=is_bitwise)
    if (name == "mesh") != (options.mesh is not None):
        raise UserError(
            'strategy="mesh" and strategy_options={"mesh": "dp=2,tp=2"} need each other: give both '
            "or neither"
        )
    return options.mesh_of(num_ranks)


def _names_in(stages: object) -> tuple[str, ...] | None:
    if stages is None:
        return None
    if isinstance(stages, str) or not isinstance(stages, Sequence):
        raise UserError(
            f"pipeline_stages={stages!r} is not a list of the names of layers in the order of the "
            "forward pass"
        )
    return tuple(map(str, stages))


def make_strategy(
    choice: StrategyChoice,
    ranks: JobRanks,
    *,
    layout: PipelineLayout | None,
    batch_size: int,
    micro_batches: int,
    seed: int,
    step: StepOptions,
) -> Strategy:
    """Return the strategy, with all its ranks present. Collective.

    layout: of a pipeline of several ranks. batch_size: of the global batch. micro_batches: of a
    full one.
    Raises: UserError when they cannot work together so.
    """
    if choice.make_own is not None:
        return choice.make_own(ranks, step=step)
    makes_default = not choice.is_bitwise and choice.name in ("gloo", *MESH_STRATEGIES)
    if makes_default and dist.is_initialized():
        raise UserError(
            f'strategy="{choice.name}" creates the default group of torch.distributed, but the '
            'program already has one: use strategy="mpi", which works beside it'
        )
    setting = StrategySetting(
        ranks=ranks,
        options=choice.options,
        step=step,
        seed=seed,
        batch_size=batch_size,
        micro_batches=micro_batches,
        layout=layout,
        tensor_plan=choice.tensor_plan,
        stages=choice.stages,
        seed_micro_batch=partial(seed_micro_batch, seed),
    )
    return (BITWISE if choice.is_bitwise else STRATEGIES)[choice.name](setting)


def layout_of(
    choice: StrategyChoice, *, batch_size: int, micro_batches: int | None, autocast: str | None
) -> PipelineLayout | None:
    """Return the layout of a pipeline of several ranks; None where there is none. micro_batches: of
    a global batch, of which each of its parts is cut into as many.

    Raises: UserError where the schedule, the mesh and the samples do not fit each other.
    """
    mesh, parts = choice.mesh, choice.data_parts
    if mesh.pp == 1:
        return None
    if micro_batches is None:
        each = mesh.pp * max(1, min(4, batch_size // (parts * mesh.pp)))
    elif micro_batches % parts:
        raise UserError(
            f"micro_batches={micro_batches} and a mesh of {mesh} exclude each other: the {parts} "
            f"parts of a global batch are split equally; give a multiple of {parts}"
        )
    else:
        each = micro_batches // parts
    if batch_size < parts * each:
        raise UserError(
            f"batch_size={batch_size} is less than the pipeline's {parts * each} micro-batches: "
            "use a larger batch, or fewer micro_batches="
        )
    with as_arguments():
        layout = replace(choice.options, micro_batches=each).layout(mesh)
    if layout is not None and autocast and not choice.is_bitwise:
        raise UserError(
            'autocast="bf16" and a pipeline exclude each other, since its stages send tensors of '
            "fixed types: leave it out, or use bitwise=True"
        )
    return layout


def check_bitwise(options: StrategyOptions, *, is_on_gpu: bool) -> None:
    """Raises: UserError for a strategy whose results depend on the number of ranks, or that cannot
    go on without ranks that die, where that is asked for."""
    check_bitwise_strategy(options)
    if is_fault_tolerant() and options.strategy != "sequential":
        spares = num_spares(os.environ)
        check_survived(options.strategy, overlap=options.overlap, spares=spares)
    if is_on_gpu:
        raise UserError("bitwise=True is for the CPU: leave device= out")


def _check_on_gpu(name: str, options: Mapping[str, object], num_optimizers: int) -> None:
    """Raises: UserError for what has no path on GPUs."""
    wrong = ""
    if name not in ("mpi", "zero") or options.get("zero_stage", 1) != 1:
        stage = f", zero_stage={options['zero_stage']}," if name == "zero" else ""
        wrong = f'strategy="{name}"{stage} works on CPU memory'
    elif others := [option for option in options if option != "zero_stage"]:
        wrong = f"{others[0]}= is for gradients on the CPU"
    elif num_optimizers > 1:
        wrong = f"{num_optimizers} optimizers: PyTorch's DDP, which sums on GPUs, takes one"
    if wrong:
        raise UserError(f'{wrong}: leave it out, or use device="cpu"')


OwnStrategy = Callable[..., Strategy]
"""A class or a function of (group, step options), and of the program's `strategy_options`. The
group has the `World` of all ranks as `group.world`."""


def name_of(make: OwnStrategy) -> str:
    """Return what records and errors call the strategy."""
    return getattr(make, "__name__", type(make).__name__)


def check_own(make: OwnStrategy, *, is_bitwise: bool, is_on_gpu: bool) -> None:
    """Raise UserError for arguments of `phalanx.start` that only its own strategies know."""
    if is_bitwise:
        raise UserError(
            f"strategy={name_of(make)}: bitwise=True and --survive fix the order of sums: leave "
            'them out, or use strategy="mpi"'
        )
    if is_on_gpu:
        raise UserError(
            f"strategy={name_of(make)} of the program is for the CPU: leave device= out"
        )


def make_own(
    make: OwnStrategy, options: Mapping[str, Any], ranks: JobRanks, *, step: StepOptions
) -> Strategy:
    """Return the program's strategy on all ranks. Collective.

    Raises: UserError for what makes no strategy, or does not take these options.
    """
    group = WorldGroup(ranks.join())
    with closing_where_refused(group):
        try:
            made = make(group, step, **options)
        except TypeError as error:
            raise UserError(
                f"strategy={name_of(make)}: {error}: it is called with the group, the step's "
                "options and strategy_options"
            ) from error
        if not isinstance(made, Strategy):
            raise UserError(
                f"strategy={name_of(make)} returned a {type(made).__name__}, no phalanx.Strategy: "
                "see docs/strategies.md"
            )
        if made.num_blocks is not None:
            raise UserError(
                f"strategy={name_of(make)} sums micro-batches in a fixed order, for which the run "
                "needs bitwise=True: give that, or sum by AllReduce()"
            )
    return made
