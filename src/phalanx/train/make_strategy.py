"""Construction of a rank's strategy from the options and the launcher's environment variables."""

from __future__ import annotations

from functools import partial

import torch

from phalanx.launch.detect import Launched
from phalanx.parallel.make import (
    JobRanks,
    make_bitwise,
    make_bitwise_pipeline,
    make_gloo,
    make_local,
    make_mpi,
    make_on_mesh,
    make_server,
)
from phalanx.parallel.mesh_options import MeshOptions
from phalanx.parallel.replica_options import LocalOptions, MpiOptions, ServerOptions
from phalanx.parallel.sequential import Sequential
from phalanx.parallel.shared import Shared
from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.run.randomness import seed_micro_batch
from phalanx.train.config import TrainConfig
from phalanx.train.own_model import named_plan
from phalanx.train.strategy_options import (
    BitwiseMpiOptions,
    BitwiseOptions,
    BitwisePipelineOptions,
)


def make_strategy(config: TrainConfig, launched: Launched | None) -> Strategy:
    """Return the strategy of the options, with all its ranks present.

    Raises: UserError when MPI sees another number of ranks than its launcher started, or ranks
            of `shared` are unevenly many on their nodes.
    """
    step = _step_options(config)
    ranks = JobRanks(launched=launched, timeout_s=config.timeout_s)
    match config.strategy_options:
        case MpiOptions() as options:
            return make_mpi(ranks, options, seed=config.seed, step=step)
        case BitwisePipelineOptions():
            layout = config.pipeline_layout(ranks.size)
            assert layout is not None, "by its options"
            return make_bitwise_pipeline(
                ranks,
                layout,
                seed_micro_batch=partial(seed_micro_batch, config.seed),
                global_batch_size=config.global_batch_size(ranks.size),
                stages=None,
                step=step,
            )
        case BitwiseOptions() as options:
            size = ranks.size - config.spares
            number = config.bitwise_micro_batches(size)
            assert number is not None, "its options"
            overlaps = isinstance(options, BitwiseMpiOptions) and options.overlap == "on"
            return make_bitwise(
                config.strategy, ranks, micro_batches=number, overlaps=overlaps, step=step
            )
        case ServerOptions() as options:
            return make_server(ranks, options, step=step)
        case LocalOptions() as options:
            return make_local(ranks, options, step=step)
        case MeshOptions() as options:
            return make_on_mesh(
                ranks,
                options,
                layout=config.pipeline_layout(ranks.size),
                global_batch_size=config.global_batch_size(ranks.size),
                tensor_plan=named_plan(options.tensor_plan),
                stages=None,
                step=step,
            )
    match config.strategy:
        case "gloo":
            return make_gloo(ranks, step=step)
        case "shared":
            return Shared(ranks.join(), step_options=step)
        case _:
            return Sequential(step)


def _step_options(config: TrainConfig) -> StepOptions:
    return StepOptions(
        accumulate=config.accumulate,
        label_smoothing=config.label_smoothing,
        clip_norm=config.clip_norm,
        skips_nonfinite=config.bad_gradients == "skip",
        autocast=torch.bfloat16 if config.autocast == "bf16" else None,
    )
