"""Construction of a rank's strategy from the options and the launcher's environment variables."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from phalanx.comm.join_world import join_world, report_binding
from phalanx.comm.link import Link
from phalanx.comm.world import World
from phalanx.gradients.compression.make import make_compressor
from phalanx.launch.detect import Launched
from phalanx.launch.orphan import JOB_VARIABLE
from phalanx.launch.variables import is_users
from phalanx.models.options import completed
from phalanx.parallel.gloo import Gloo
from phalanx.parallel.mpi import MPI
from phalanx.parallel.sequential import Sequential
from phalanx.parallel.shared import Shared
from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.torch_backend.store import open_store
from phalanx.train.config import TrainConfig
from phalanx.train.strategy_options import LocalOptions, MeshOptions, MpiOptions, ServerOptions

RENDEZVOUS = "PHALANX_RENDEZVOUS"  # a file through which ranks without MPI find each other


def make_strategy(config: TrainConfig, launched: Launched | None) -> Strategy:
    """Return the strategy of the options, with all its ranks present.

    Raises: UserError when MPI sees another number of ranks than its launcher started, or ranks
            that are to share memory are on several nodes.
    """
    step = _step_options(config)
    match config.strategy_options:
        case MpiOptions() as options:
            return _make_mpi(config, options, launched, step)
        case ServerOptions() as options:
            from phalanx.parallel.server import Server

            return Server(
                _world(config, launched),
                servers=options.servers,
                mode=options.server_mode,
                staleness=options.staleness,
                step_options=step,
            )
        case LocalOptions() as options:
            from phalanx.parallel.local import Local

            return Local(
                _world(config, launched),
                steps=options.local_steps,
                outer_optimizer=options.outer_optimizer,
                outer_lr=options.outer_lr,
                outer_momentum=options.outer_momentum,
                step_options=step,
            )
        case MeshOptions(strategy="zero", zero_stage=1) as options:
            from phalanx.parallel.zero import ZeroOne

            return ZeroOne(_world(config, launched), backend=options.backend, step_options=step)
        case MeshOptions() as options:
            return _make_mesh(config, options, launched, step)
    match config.strategy:
        case "gloo":
            return _make_gloo(config, launched, step)
        case "shared":
            return Shared(_world(config, launched), step_options=step)
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


def _make_mpi(
    config: TrainConfig, options: MpiOptions, launched: Launched | None, step: StepOptions
) -> MPI:
    compressor = make_compressor(
        options.compress,
        powersgd_rank=options.powersgd_rank,
        topk_fraction=options.topk_fraction,
        seed=config.seed,
    )
    return MPI(
        _world(config, launched, options.link),
        method=options.all_reduce,
        compressor=compressor,
        overlap=options.overlap,
        bucket_bytes=None if options.bucket_mb is None else max(1, int(options.bucket_mb * 1e6)),
        step_options=step,
    )


def _make_mesh(
    config: TrainConfig, mesh_options: MeshOptions, launched: Launched | None, step: StepOptions
) -> Strategy:
    from phalanx.parallel.on_mesh import OnMesh
    from phalanx.parallel.pipeline.staged import Staged

    world = _world(config, launched)
    mesh = config.mesh_of(world.size)
    common: dict[str, Any] = {
        "model": config.model,
        "options": completed(config.model, config.model_options),
        "backend": mesh_options.backend,
        "zero_stage": mesh_options.zero_stage,
        "sequence_parallel": mesh_options.sequence_parallel,
        "step_options": step,
    }
    if mesh.pp == 1 or mesh_options.pipeline is None:
        return OnMesh(world, mesh, **common)
    layout = mesh_options.pipeline.layout(mesh)
    global_batch_size = config.global_batch_size(world.size)
    return Staged(world, mesh, layout=layout, global_batch_size=global_batch_size, **common)


def _world(config: TrainConfig, launched: Launched | None, link: str | None = None) -> World:
    world = join_world(
        timeout_s=config.timeout_s,
        num_started=launched.world_size if launched else None,
        launcher=launched.launcher if launched else "the launcher",
        link=None if link is None else Link.parse(link),
    )
    if JOB_VARIABLE not in os.environ:  # the launcher is the user's
        report_binding(world)
    return world


def _make_gloo(config: TrainConfig, launched: Launched | None, step: StepOptions) -> Gloo:
    rank = launched.rank if launched else 0
    size = launched.world_size if launched else 1
    if RENDEZVOUS in os.environ or launched is None:
        path = os.environ.get(RENDEZVOUS)
        store: dist.Store = dist.FileStore(path, size) if path else dist.HashStore()
    elif is_users("MASTER_ADDR", os.environ) or launched.launcher == "torchrun":
        store, _, _ = next(dist.rendezvous("env://", rank, size))
    else:
        world = _world(config, launched)
        store = open_store(world, timedelta(seconds=config.timeout_s))
        world.close()
    local_rank = (launched.local_rank if launched else None) or 0
    return Gloo(
        rank=rank,
        size=size,
        local_rank=local_rank,
        store=store,
        timeout_s=config.timeout_s,
        step_options=step,
    )
