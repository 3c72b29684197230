"""Choice of the strategy of a program's run, and its construction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

import torch.distributed as dist

from phalanx.errors import UserError
from phalanx.parallel.make import (
    JobRanks,
    make_bitwise,
    make_gloo,
    make_local,
    make_mpi,
    make_on_gpus,
    make_on_mesh,
)
from phalanx.parallel.mesh import parse_mesh
from phalanx.parallel.mesh_options import (
    BackendOptions,
    MeshOptions,
    ShardOptions,
    TensorOptions,
)
from phalanx.parallel.option_groups import GivenOptions, default_options
from phalanx.parallel.replica_options import LocalOptions, MpiOptions
from phalanx.parallel.sequential import Sequential
from phalanx.parallel.shared import Shared
from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy

StrategyName = Literal[
    "auto", "sequential", "mpi", "shared", "gloo", "zero", "local", "tensor", "mesh"
]
OF_STEPS = ("pipeline", "server")
"""They make whole steps, forward pass, loss and backward pass in one."""
OF_ONE_OPTIMIZER = ("shared", "gloo", "zero", "tensor", "mesh")
ON_A_MESH = ("zero", "tensor", "mesh")
PLAN = "tensor_plan"

OPTIONS = (MpiOptions, LocalOptions, BackendOptions, ShardOptions, TensorOptions)
"""Groups of the options that `strategy_options` may name."""

_OPTION = re.compile(
    r"--([a-z]+(?:-[a-z]+)*)(?![a-z=-])"
    r"(?: (none|auto|on|off|mpi|shared|gloo|zero|local|sequential|fp16|bf16|"
    r"int8|powersgd|topk|average|nesterov|library|naive|direct|ring|tree|halving|[\d.]+))?"
)


@dataclass(frozen=True, kw_only=True)
class StrategyChoice:
    """A strategy and its options, which fit each other."""

    name: StrategyName
    label: str
    """Name for records: the one that was asked for, also where one rank takes `sequential`."""
    mpi: MpiOptions
    local: LocalOptions
    mesh: MeshOptions | None = None
    """Of strategies that divide the model."""
    tensor_plan: object = None
    """In place of the model's own, see `tensor.plan_of`."""
    is_on_gpu: bool = False
    bitwise_micro_batches: int | None = None
    """Of a global batch, where results must not depend on the number of ranks to the bit."""


def choose_strategy(
    name: str,
    options: Mapping[str, object],
    *,
    num_ranks: int,
    num_optimizers: int,
    clips: bool,
    is_on_gpu: bool = False,
    bitwise_micro_batches: int | None = None,
) -> StrategyChoice:
    """Return the strategy of a run of `num_ranks` ranks, and its options. One rank, which has
    nothing to send, takes `sequential` for all but `local`.

    name: as `phalanx.start` has it. options: of the strategy, by the names of the command line's.
    clips: whether gradients are clipped.
    Raises: UserError for a strategy or an option that does not fit.
    """
    if name in OF_STEPS:
        raise UserError(
            f"strategy={name!r} makes forward pass, loss and backward pass in one, which a "
            "program's loop does not know: it is for `phalanx train`"
        )
    if name not in get_args(StrategyName):
        names = ", ".join(get_args(StrategyName))
        raise UserError(f"strategy={name!r} is none of {names}")
    chosen: Any = "mpi" if name == "auto" else name
    if chosen == "sequential" and num_ranks > 1:
        raise UserError(
            f'strategy="sequential" is for one process, and there are {num_ranks} ranks'
        )
    if chosen == "shared" and clips and bitwise_micro_batches is None:
        raise UserError(
            'strategy="shared" sums and updates in one pass and cannot clip: leave out '
            'clip_norm, or take strategy="mpi"'
        )
    if chosen in OF_ONE_OPTIMIZER and num_optimizers > 1:
        raise UserError(
            f'strategy="{chosen}" takes one optimizer, and there are {num_optimizers}: take '
            'strategy="mpi"'
        )
    with as_arguments():
        known = default_options(*OPTIONS)
        if unknown := [option for option in options if option not in known]:
            raise UserError(f"strategy_options: {unknown[0]!r} is none of {', '.join(known)}")
        plain = {key: value for key, value in options.items() if key != PLAN}
        _check_types(plain, *OPTIONS)
        given = GivenOptions(plain, f"strategy={chosen!r}")
        mpi = given.take_if(chosen == "mpi", MpiOptions, 'strategy="mpi"')
        local = given.take_if(chosen == "local", LocalOptions, 'strategy="local"')
        mesh = _mesh_of(chosen, given, num_ranks=num_ranks)
        is_split = mesh is not None and mesh.mesh_of(num_ranks).tp > 1
    if options.get(PLAN) is not None and not is_split and num_ranks > 1:
        raise UserError('tensor_plan= is for strategy="tensor" and meshes with tp')
    if is_on_gpu and (num_ranks > 1 or chosen == "local"):
        _check_on_gpu(chosen, options, num_optimizers)
    if bitwise_micro_batches is not None:
        check_bitwise(chosen, options, is_on_gpu=is_on_gpu)
    label = "sequential" if name == "auto" and num_ranks == 1 else chosen
    if num_ranks == 1 and chosen != "local":  # the same numbers, without MPI
        chosen = "sequential"
    return StrategyChoice(
        name=chosen,
        label=label,
        mpi=mpi or MpiOptions(),
        local=local or LocalOptions(),
        mesh=mesh,
        tensor_plan=options.get(PLAN),
        is_on_gpu=is_on_gpu,
        bitwise_micro_batches=bitwise_micro_batches,
    )


def make_strategy(
    choice: StrategyChoice, ranks: JobRanks, *, seed: int, step: StepOptions
) -> Strategy:
    """Return the strategy, with all its ranks present. Collective.

    Raises: UserError when they cannot work together so.
    """
    if (number := choice.bitwise_micro_batches) is not None:
        overlaps = choice.name == "mpi" and choice.mpi.overlap == "on"
        return make_bitwise(choice.name, ranks, micro_batches=number, overlaps=overlaps, step=step)
    if choice.name in ("gloo", *ON_A_MESH) and dist.is_initialized():
        raise UserError(
            f'strategy="{choice.name}" makes the default group of torch.distributed, and the '
            'program has made one: take strategy="mpi", which lives beside it'
        )
    if choice.is_on_gpu and choice.name == "mpi" and dist.is_initialized():
        raise UserError(
            'on several ranks device="cuda" makes the default group of torch.distributed, and the '
            "program, or a run that an error has ended, has made one: call "
            "torch.distributed.destroy_process_group() first"
        )
    match choice.name:
        case "mpi" if choice.is_on_gpu:
            return make_on_gpus(ranks, step=step)
        case "mpi":
            return make_mpi(ranks, choice.mpi, seed=seed, step=step)
        case "local":
            return make_local(ranks, choice.local, step=step)
        case "shared":
            return Shared(ranks.join(), step_options=step)
        case "gloo":
            return make_gloo(ranks, step=step)
        case "zero" | "tensor" | "mesh":
            assert choice.mesh is not None, "of these strategies"
            return make_on_mesh(ranks, choice.mesh, tensor_plan=choice.tensor_plan, step=step)
        case _:
            return Sequential(step)


def data_ranks(name: str, options: Mapping[str, object], num_ranks: int) -> int:
    """Return into how many parts the ranks cut each global batch: ranks that divide layers see the
    same samples.

    Raises: UserError for a mesh of other ranks.
    """
    if name == "tensor":
        return 1
    text = options.get("mesh")
    if name != "mesh" or not isinstance(text, str):
        return num_ranks
    with as_arguments():
        return parse_mesh(text).data_size


def _mesh_of(name: str, given: GivenOptions, *, num_ranks: int) -> MeshOptions | None:
    """Return the options of a strategy that divides the model; None of any other.

    Raises: UserError for options of another strategy, and for axes that are not those of the ranks.
    """
    if name == "zero" and not given.has("zero_stage"):
        shard: ShardOptions | None = ShardOptions(zero_stage=1)
    else:
        words = 'strategy="zero" and meshes with shard'
        shard = given.take_if(name in ("zero", "mesh"), ShardOptions, words)
    axes = given.take_if(name in ON_A_MESH, BackendOptions, 'strategy="zero", "tensor" and "mesh"')
    is_tensor = name in ("tensor", "mesh")
    words = 'strategy="tensor" and meshes with tp'
    tensor = given.take_if(is_tensor, TensorOptions, words)
    if axes is None:
        return None
    if (name == "mesh") != (axes.mesh is not None):
        raise UserError(
            'strategy="mesh" and strategy_options={"mesh": "dp=2,tp=2"} go together: give both, '
            "or neither"
        )
    options = MeshOptions(**vars(axes), strategy=name, shard=shard, pipeline=None, tensor=tensor)
    mesh = options.mesh_of(num_ranks)
    if mesh.pp > 1:
        raise UserError(
            f"mesh={axes.mesh}: pipelines make forward pass, loss and backward pass in one, which "
            "a program's loop does not know: leave pp out, or take `phalanx train`"
        )
    return options


def check_bitwise(name: str, options: Mapping[str, object], *, is_on_gpu: bool) -> None:
    """Raises: UserError for what makes results depend on the number of ranks."""
    if name not in ("mpi", "sequential", "shared", "zero"):
        raise UserError(
            f'strategy="{name}" does not sum the gradients of micro-batches in a fixed order, as '
            'bitwise=True and --survive do: take strategy="mpi"'
        )
    if is_on_gpu:
        raise UserError("bitwise=True is for the CPU: leave device= out")
    if others := options.keys() - {"overlap"}:
        raise UserError(f"bitwise=True has an order of sums of its own: leave {min(others)} out")


def _check_on_gpu(name: str, options: Mapping[str, object], num_optimizers: int) -> None:
    """Raises: UserError for what has no path on GPUs."""
    wrong = ""
    if name not in ("mpi", "zero") or options.get("zero_stage", 1) != 1:
        stage = f", zero_stage={options['zero_stage']}," if name == "zero" else ""
        wrong = f'strategy="{name}"{stage} works on the memory of the CPU'
    elif options:
        wrong = f"{next(iter(options))}= is for gradients on the CPU"
    elif num_optimizers > 1:
        wrong = f"{num_optimizers} optimizers: PyTorch's DDP, which sums on GPUs, takes one"
    if wrong:
        raise UserError(f'{wrong}: leave it out, or take device="cpu"')


@contextmanager
def as_arguments() -> Iterator[None]:
    """Let errors within name arguments of Python in place of options of the command line."""
    try:
        yield
    except UserError as error:
        raise UserError(_OPTION.sub(_argument, str(error))) from error


def _argument(option: re.Match[str]) -> str:
    name, value = option[1].replace("-", "_"), option[2]
    if value is None:
        return f"{name}="
    return f"{name}={value}" if value[0].isdigit() else f'{name}="{value}"'


def _check_types(options: Mapping[str, object], *groups: Any) -> None:
    """Raise UserError for a value that is none of its option's."""
    kinds = {each.name: each.type for group in groups for each in fields(group)}
    for name, value in options.items():
        kind: Any = kinds[name]
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise UserError(
                    f"{name}={value!r} is none of {', '.join(map(str, get_args(kind)))}"
                )
        elif isinstance(value, bool) or not isinstance(
            value, (int, float) if kind is float else kind
        ):
            raise UserError(f"{name}={value!r} is no value of this option: it takes {kind}")
