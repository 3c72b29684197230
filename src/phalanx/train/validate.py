"""Validation of the options against each other, the data and the model, before anything is
started."""

from __future__ import annotations

from phalanx.errors import UserError
from phalanx.models.options import (
    DataShape,
    check_data,
    completed,
    is_own_model,
    stage_layers,
    tensor_splits,
)
from phalanx.run.strategy_options import OF_SLICES, check_full_norm
from phalanx.train.config import TrainConfig
from phalanx.train.options import parse_slow_rank
from phalanx.train.schedule import check_warm_up


def dataset_for(config: TrainConfig) -> str:
    """Return the data set of the run; `auto` means text for the gpt."""
    return "text" if config.dataset == "auto" and config.model == "gpt" else config.dataset


def validate(config: TrainConfig, shape: DataShape) -> None:
    """config: complete; shape: of the data.

    What only a model of the user's can tell, `phalanx.start` finds.

    Raises: UserError with the numbers that do not fit.
    """
    check_data(config.model, shape)
    check_data_use(config, shape)
    config.global_batch_size()
    if config.slow_rank is not None:
        check_slow_rank(config, config.slow_rank, config.num_ranks)
    check_warm_up(config)
    check_full_gradients(config)
    mesh = config.mesh_of(config.num_ranks)
    if mesh.shard > 1 and config.zero_stage == 1:
        raise UserError(
            f"--zero-stage 1 does not shard parameters, but shard={mesh.shard} does: use "
            f"--zero-stage 2 or 3, or --strategy zero --zero-stage 1 --ranks {mesh.size}"
        )
    check_tensor(config, shape)
    check_pipeline(config)


def check_full_gradients(config: TrainConfig) -> None:
    """Raise UserError where ranks update slices of the parameters: none has a full layer."""
    if config.bitwise:
        return
    check_full_norm(config.strategy, config.clip_norm)
    if config.strategy in OF_SLICES and config.optimizer in ("lars", "lamb"):
        raise UserError(
            f"--optimizer {config.optimizer} needs norms of full layers, but --strategy "
            f"{config.strategy} updates slices of them: use --strategy mpi"
        )


def check_data_use(config: TrainConfig, shape: DataShape) -> None:
    """Raise UserError for what cannot be done to this data, or not with this strategy."""
    if config.augment and not shape.is_image:
        what = "text" if shape.is_text else "no images of classes"
        raise UserError(
            f"--augment shifts and mirrors images, but this data is {what}: leave it out"
        )
    if config.damaged == "skip" and config.strategy == "server":
        raise UserError(
            "--damaged skip and --strategy server exclude each other, since workers step "
            "independently and cannot agree on the samples of a batch"
        )


def check_slow_rank(config: TrainConfig, slow_rank: str, ranks: int) -> None:
    """Raise UserError when there is no such rank, or it makes no steps."""
    rank, _ = parse_slow_rank(slow_rank)
    if rank >= ranks:
        raise UserError(f"--slow-rank {slow_rank}: there are {ranks} ranks, from 0")
    if config.strategy == "server" and rank >= ranks - config.servers:
        raise UserError(
            f"--slow-rank {slow_rank}: rank {rank} is a server, which computes no steps; workers "
            f"are ranks 0 to {ranks - config.servers - 1}"
        )


def check_tensor(config: TrainConfig, shape: DataShape) -> None:
    """Raise UserError when heads, widths or, where it is split, the context do not divide by the
    ranks of the axis `tp`."""
    mesh = config.mesh_of(config.num_ranks)
    if mesh.tp == 1:
        return
    splits = tensor_splits(config.model, completed(config.model, config.model_options))
    if not splits and not is_own_model(config.model) and config.tensor_plan is None:
        raise UserError(
            f"--model {config.model} cannot be split by tensor parallelism: use mlp or gpt"
        )
    for name, number in splits.items():
        if number % mesh.tp:
            raise UserError(
                f"{name} {number} is not divisible by tp={mesh.tp}: every rank needs an equal share"
            )
    if config.sequence_parallel and shape.inputs[0] % mesh.tp:
        raise UserError(
            f"--sequence-parallel: a text of {shape.inputs[0]} tokens is not divisible by "
            f"tp={mesh.tp}: every rank needs an equal share"
        )


def check_pipeline(config: TrainConfig) -> None:
    """Raise UserError when there are more stages than layers, or the schedule cannot run so."""
    mesh = config.mesh_of(config.num_ranks)
    if (layout := config.layout(mesh)) is None:
        return
    sizes = completed(config.model, config.model_options)
    layers = stage_layers(config.model, sizes, is_split=mesh.tp > 1)
    is_own = is_own_model(config.model)
    if not layers and not is_own:
        raise UserError(
            f"--model {config.model} cannot be split into stages: use mlp, resnet or gpt"
        )
    if layout.num_stages > len(layers) and not is_own:
        more = ", or more --layers" if config.model == "gpt" else ""
        raise UserError(
            f"pp={mesh.pp} with {layout.stages_per_rank} stages per rank are {layout.num_stages} "
            f"stages, but {config.model} has {len(layers)} layers to split between "
            f"({', '.join(layers)}): use fewer ranks or stages{more}"
        )
    batch, needed = (
        config.global_batch_size(),
        mesh.data_size * layout.micro_batches,
    )
    if batch < needed:
        raise UserError(
            f"a global batch of {batch} is less than {mesh.data_size} data ranks × "
            f"{layout.micro_batches} micro-batches = {needed}: use --batch-size {needed} or more, "
            "or fewer --micro-batches"
        )
    if config.accumulate > 1:
        raise UserError(
            f"--accumulate {config.accumulate} and a pipeline exclude each other: a pipeline "
            "splits batches by --micro-batches"
        )
