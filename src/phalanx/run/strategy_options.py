"""Options of all strategies, for the command line and for programs, and which strategy has which.

No torch, no MPI.
"""

from __future__ import annotations

from collections.abc import Collection

from phalanx.comm.link import Link
from phalanx.errors import UserError
from phalanx.parallel.option_groups import default_options, refuse
from phalanx.parallel.options import (
    BackendOptions,
    LocalOptions,
    MpiOptions,
    PipelineOptions,
    ServerOptions,
    ShardOptions,
    StrategyName,
    StrategyOptions,
    TensorOptions,
)

OPTION_NAMES = tuple(default_options(StrategyOptions))
MESH_STRATEGIES: tuple[StrategyName, ...] = ("zero", "tensor", "pipeline", "mesh")

OF_SLICES: tuple[StrategyName, ...] = ("shared", "server")
"""Strategies whose ranks update slices of the parameters, and have no full gradient."""

BITWISE_MICRO_BATCHES = 8
"""Default micro-batches of a global batch whose results have the same bits on any number of
ranks."""

NOT_BITWISE = {
    "gloo": "Gloo sums in an order that depends on the number of ranks",
    "server": "its servers sum gradients in the order of the workers",
    "local": "its ranks train separately between averages, so results depend on their number",
    "tensor": "it splits the sums within layers among the ranks",
    "mesh": "its axes split sums among ranks: tp within layers, shard and dp of gradients",
}
"""Strategies whose sums depend on the number of ranks, and why."""

NOT_SURVIVED = {
    "sequential": "one process has no peers that could continue",
    "gloo": "Gloo ends all ranks when a connection breaks",
    "server": "a server has the only copy of its shard of the parameters",
    "local": "a rank has the only copy of its updates since the last average",
    "tensor": "a rank has the only copy of its shard of the layers",
    "pipeline": "a rank has the only copy of its stages",
    "mesh": "a rank may have the only copy of shards or stages",
}
"""Strategies that cannot go on in place when ranks die, and why."""


def check_applicable(
    options: StrategyOptions, axes: Collection[str], run: str, *, is_bitwise: bool = False
) -> None:
    """Raise UserError for an option that the strategy does not have, or a link that is none.

    axes: of its mesh, with several ranks. run: the words of the run in refusals.
    """
    strategy = options.strategy
    is_replicated = is_bitwise or strategy not in MESH_STRATEGIES
    mpi = "--strategy mpi"
    if is_bitwise:
        mpi += " without --bitwise (or --survive), which has a fixed order of sums"
    backend = (
        "--strategy zero, tensor, pipeline and mesh (PyTorch's DDP on Gloo is --strategy gloo)"
    )
    if is_bitwise and strategy in MESH_STRATEGIES:
        backend = "runs without --bitwise"
    groups: tuple[tuple[type, bool, str], ...] = (
        (MpiOptions, strategy == "mpi" and not is_bitwise, mpi),
        (ServerOptions, strategy == "server", "--strategy server"),
        (LocalOptions, strategy == "local", "--strategy local"),
        (BackendOptions, not is_replicated, backend),
        (
            ShardOptions,
            strategy == "zero" or "shard" in axes,
            "--strategy zero and meshes with shard",
        ),
        (
            PipelineOptions,
            strategy == "pipeline" or "pp" in axes,
            "--strategy pipeline and meshes with pp",
        ),
        (
            TensorOptions,
            strategy == "tensor" or "tp" in axes,
            "--strategy tensor or a mesh with tp",
        ),
    )
    also = {"micro_batches", "overlap"} if is_bitwise else set()
    if is_bitwise and strategy != "mpi":
        refuse(options, ["overlap"], "--strategy mpi", run)
    for group, applies, words in groups:
        if not applies:
            refuse(
                options, [name for name in default_options(group) if name not in also], words, run
            )
    if options.link is not None:
        Link.parse(options.link)


def check_bitwise_strategy(options: StrategyOptions) -> None:
    """Raise UserError where the sums of a strategy depend on the number of ranks."""
    if options.strategy in NOT_BITWISE:
        raise UserError(
            f"--bitwise and --strategy {options.strategy} exclude each other: "
            f"{NOT_BITWISE[options.strategy]}; use --strategy mpi"
        )
    if options.strategy == "zero" and options.zero_stage == 3:
        raise UserError(
            "--bitwise (or --survive) and --zero-stage 3 exclude each other: stage 3 gathers "
            "layers on all ranks at the same time, but ranks compute different numbers of "
            "micro-batches; use --zero-stage 1 or 2 (3 is the default of phalanx train)"
        )


def check_full_norm(strategy: str, clip_norm: float | None) -> None:
    """Raise UserError where gradients are to be clipped, and ranks update slices of parameters."""
    if clip_norm is not None and strategy in OF_SLICES:
        raise UserError(
            f"--clip-norm {clip_norm:g} needs the norm of all gradients, but --strategy {strategy} "
            "updates slices of the parameters: leave it out, or use --strategy mpi"
        )


def check_survived(strategy: str, *, overlap: str = "auto", spares: int = 0) -> None:
    """Raise UserError where the ranks that are left cannot go on without those that die."""
    if spares and strategy in ("zero", "shared"):
        raise UserError(
            f"--spares {spares} and --strategy {strategy} exclude each other, since it divides the "
            "optimizer's state among the computing ranks: use --strategy mpi"
        )
    if overlap == "on":
        raise UserError(
            "--overlap on and --survive exclude each other, since the micro-batches of a lost rank "
            "are added after the last backward pass: leave --overlap out"
        )
    if strategy in NOT_SURVIVED:
        raise UserError(
            f"--survive and --strategy {strategy} exclude each other: {NOT_SURVIVED[strategy]}; "
            "use --strategy mpi, or restarts from checkpoints: --restarts N"
        )


def check_micro_batches(number: int | None, *, batch_size: int, num_ranks: int) -> int:
    """Return the number of micro-batches in a global batch: one a rank where None was asked for.

    Raises: UserError when ranks, or micro-batches, would be left without samples.
    """
    if number is None:
        number = num_ranks
        if batch_size < num_ranks:
            raise UserError(
                f"batch_size={batch_size} is the global batch size, but there are {num_ranks} "
                f"ranks: give at least {num_ranks}, or start fewer ranks"
            )
    ranks = f"{num_ranks} rank{'s' * (num_ranks > 1)}"
    if not num_ranks <= number <= batch_size:
        raise UserError(
            f"micro_batches={number} is out of range: with {ranks} and batch_size={batch_size} it "
            f"must be {num_ranks} to {batch_size}"
        )
    return number
