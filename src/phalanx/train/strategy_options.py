"""Options of each strategy: a dataclass for each, so that none has the options of another.

No torch, no MPI. Annotations here are objects, not strings: the command line reads them.
"""

from dataclasses import dataclass
from typing import Literal

from phalanx.comm.link import Link
from phalanx.errors import UserError
from phalanx.models.options import is_own_model
from phalanx.parallel.mesh import Mesh, parse_mesh
from phalanx.parallel.mesh_options import (
    BackendOptions,
    MeshOptions,
    PipelineOptions,
    ShardOptions,
    TensorOptions,
)
from phalanx.parallel.option_groups import AT_LEAST_ONE, GivenOptions, ruled
from phalanx.parallel.replica_options import LocalOptions, MpiOptions, Overlap, ServerOptions
from phalanx.run.micro_batches import BITWISE_MICRO_BATCHES

StrategyName = Literal[
    "sequential", "mpi", "shared", "gloo", "server", "local", "zero", "tensor", "pipeline", "mesh"
]

MESH_STRATEGIES: tuple[StrategyName, ...] = ("zero", "tensor", "pipeline", "mesh")


@dataclass(frozen=True, kw_only=True)
class BitwiseOptions:
    """Options of a run whose bits do not depend on the number of ranks."""

    micro_batches: int | None = ruled(None, AT_LEAST_ONE)
    """Number of micro-batches of each global batch, whatever the ranks. None: as many as the
    default."""

    def number(self, batch_size: int) -> int:
        """Return the micro-batches of a full global batch."""
        return self.micro_batches or min(BITWISE_MICRO_BATCHES, batch_size)


@dataclass(frozen=True, kw_only=True)
class BitwiseMpiOptions(BitwiseOptions):
    """The same of `mpi`."""

    overlap: Overlap = "auto"
    """Sum gradients while the last backward pass of a step runs; `auto`: after it."""


@dataclass(frozen=True, kw_only=True)
class BitwiseZeroOptions(BitwiseOptions, ShardOptions):
    """The same of `zero`."""


@dataclass(frozen=True, kw_only=True)
class BitwisePipelineOptions(BitwiseOptions, PipelineOptions):
    """The same of `pipeline`."""


NOT_BITWISE = {
    "gloo": "Gloo sums in an order that depends on the number of ranks",
    "server": "its servers sum the gradients of the workers in the order of these",
    "local": "its ranks train alone between two averages, so that their number is mathematics",
    "tensor": "it cuts the sums within layers among the ranks",
    "mesh": "its axes cut sums among the ranks: tp those within layers, shard and dp gradients",
}
"""Strategies whose sums depend on the number of ranks, and why."""

NOT_SURVIVED = {
    "sequential": "one process has no others that could go on",
    "gloo": "Gloo ends the others when a connection breaks",
    "server": "a server alone has its shard of the parameters, which is lost with it",
    "local": "what a rank has learned since the last average is lost with it",
    "tensor": "a rank alone has its shard of the layers, which is lost with it",
    "pipeline": "a rank alone has its stages, which are lost with it",
    "mesh": "a rank alone may have shards or stages, which are lost with it",
}
"""Strategies that cannot go on in place when ranks die, and why."""


def check_survived(strategy: StrategyName) -> None:
    """Raise UserError where the ranks that are left cannot go on without those that die."""
    if strategy in NOT_SURVIVED:
        raise UserError(
            f"--survive and --strategy {strategy} exclude each other: {NOT_SURVIVED[strategy]}; "
            "take --strategy mpi, or restarts from checkpoints: --restarts N"
        )


StrategyOptions = MpiOptions | ServerOptions | LocalOptions | MeshOptions | BitwiseOptions | None
"""None: `sequential`, `shared` and `gloo` have no options of their own."""


def take_strategy_options(
    given: GivenOptions,
    strategy: StrategyName,
    mesh: str | None,
    model: str,
    *,
    is_bitwise: bool = False,
) -> StrategyOptions:
    """Return the options of `strategy`. Raises: UserError for options of another strategy."""
    bitwise = _take_bitwise_options(given, strategy) if is_bitwise else None
    words = "--strategy mpi"
    if is_bitwise:
        words += " without --bitwise (or --survive), which has an order of sums of its own"
    mpi = given.take_if(strategy == "mpi" and not is_bitwise, MpiOptions, words)
    if mpi is not None and mpi.link is not None:
        Link.parse(mpi.link)
    server = given.take_if(strategy == "server", ServerOptions, "--strategy server")
    local = given.take_if(strategy == "local", LocalOptions, "--strategy local")
    axes = Mesh() if mesh is None else parse_mesh(mesh)
    on_mesh = _take_mesh_options(given, "mpi" if is_bitwise else strategy, axes, model)
    return bitwise or mpi or server or local or on_mesh


def _take_bitwise_options(given: GivenOptions, strategy: StrategyName) -> BitwiseOptions:
    if strategy in NOT_BITWISE:
        raise UserError(
            f"--bitwise and --strategy {strategy} exclude each other: {NOT_BITWISE[strategy]}; "
            "take --strategy mpi"
        )
    kinds: dict[str, type[BitwiseOptions]] = {
        "mpi": BitwiseMpiOptions, "zero": BitwiseZeroOptions, "pipeline": BitwisePipelineOptions
    }  # fmt: skip
    options = given.take(kinds.get(strategy, BitwiseOptions))
    if strategy not in ("zero", "pipeline"):
        return options
    if isinstance(options, BitwiseZeroOptions) and options.zero_stage == 3:
        raise UserError(
            "--bitwise (or --survive) and --zero-stage 3 exclude each other: its ranks gather "
            "layers together, and here they compute different numbers of micro-batches; give "
            "--zero-stage 1 or 2 (3 is the default)"
        )
    backend = given.take(BackendOptions).backend
    given.refuse("backend", backend, "mpi", "runs without --bitwise")
    return options


def _take_mesh_options(
    given: GivenOptions, strategy: StrategyName, mesh: Mesh, model: str
) -> MeshOptions | None:
    backend = given.take_if(
        strategy in MESH_STRATEGIES,
        BackendOptions,
        "--strategy zero, tensor, pipeline and mesh (PyTorch's DDP on Gloo is --strategy gloo)",
    )
    shard = given.take_if(
        strategy == "zero" or mesh.shard > 1, ShardOptions, "--strategy zero and meshes with shard"
    )
    pipeline = given.take_if(
        strategy == "pipeline" or mesh.pp > 1,
        PipelineOptions,
        "--strategy pipeline and meshes with pp",
    )
    is_tensor = strategy == "tensor" or mesh.tp > 1
    words = "--strategy tensor or a mesh with tp"
    tensor = given.take(TensorOptions)
    if not (is_tensor and (model == "gpt" or is_own_model(model))):
        given.refuse(
            "sequence_parallel", tensor.sequence_parallel, False, f"--model gpt with {words}"
        )
    if not is_tensor:
        given.refuse("tensor_plan", tensor.tensor_plan, None, words)
    if backend is None:
        return None
    return MeshOptions(
        **vars(backend),
        strategy=strategy,
        shard=shard,
        pipeline=pipeline,
        tensor=tensor if is_tensor else None,
    )
