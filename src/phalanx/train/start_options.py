"""Options of a training as `phalanx.start` has them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from phalanx.parallel.mesh_options import MeshOptions
from phalanx.train.config import TrainConfig
from phalanx.train.own_model import named_plan
from phalanx.train.strategy_options import (
    BitwiseMpiOptions,
    BitwiseOptions,
    BitwisePipelineOptions,
)


def micro_batches_of(config: TrainConfig) -> int | None:
    """Return into how many micro-batches a global batch is cut; None: one a rank.

    config: complete.
    """
    assert config.ranks is not None, "complete"
    parts, batch_size = config.data_parts(config.ranks), config.global_batch_size(config.ranks)
    if (number := config.bitwise_micro_batches(config.ranks)) is not None:
        return number
    if (layout := config.pipeline_layout(config.ranks)) is not None:
        return parts * layout.micro_batches
    return min(batch_size, parts * config.accumulate) if config.accumulate > 1 else None


def start_options(config: TrainConfig) -> dict[str, Any]:
    """Return the `strategy_options` of the training. config: complete."""
    options: dict[str, Any] = {}
    match config.strategy_options:
        case None:
            pass
        case MeshOptions() as mesh:
            options = {"backend": mesh.backend, "sequence_parallel": mesh.sequence_parallel}
            if config.strategy == "mesh":
                options["mesh"] = mesh.mesh
            if config.strategy == "zero" or mesh.shard is not None:
                options["zero_stage"] = mesh.zero_stage
            if mesh.pipeline is not None:
                options |= vars(mesh.pipeline)
            if mesh.tensor_plan is not None:
                options["tensor_plan"] = named_plan(mesh.tensor_plan)
        case BitwiseMpiOptions(overlap=overlap):
            options = {"overlap": overlap}
        case BitwisePipelineOptions() as pipeline:
            options = dict(vars(pipeline))
        case BitwiseOptions():
            pass
        case group:
            options = {each.name: getattr(group, each.name) for each in fields(group)}
    options.pop("micro_batches", None)  # an argument of `phalanx.start`
    if config.rebalance:
        options["rebalance"] = True
    return {name: value for name, value in options.items() if value is not None}
