"""Construction of a rank's strategy from the options and the launcher's environment variables."""

from __future__ import annotations

import os
from datetime import timedelta

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
from phalanx.parallel.strategy import Strategy
from phalanx.torch_backend.store import open_store
from phalanx.train.config import TrainConfig

RENDEZVOUS = "PHALANX_RENDEZVOUS"  # a file through which ranks without MPI find each other


def make_strategy(config: TrainConfig, launched: Launched | None) -> Strategy:
    """Return the strategy of the options, with all its ranks present.

    Raises: UserError when MPI sees another number of ranks than its launcher started, or ranks
            that are to share memory are on several nodes.
    """
    match config.strategy:
        case "sequential":
            return Sequential()
        case "gloo":
            return _make_gloo(config, launched)
        case "mpi":
            return _make_mpi(config, launched)
        case "shared":
            return Shared(_world(config, launched))
        case "server":
            from phalanx.parallel.server import Server

            return Server(
                _world(config, launched),
                servers=config.servers,
                mode=config.server_mode,
                staleness=config.staleness,
            )
        case "local":
            from phalanx.parallel.local import Local

            return Local(
                _world(config, launched),
                steps=config.local_steps,
                outer_optimizer=config.outer_optimizer,
                outer_lr=config.outer_lr,
                outer_momentum=config.outer_momentum,
            )
        case "zero" if config.zero_stage == 1:
            from phalanx.parallel.zero import ZeroOne

            return ZeroOne(_world(config, launched), backend=config.backend)
        case "zero" | "tensor" | "pipeline" | "mesh":
            return _make_mesh(config, launched)


def _make_mpi(config: TrainConfig, launched: Launched | None) -> MPI:
    compressor = make_compressor(
        config.compress,
        powersgd_rank=config.powersgd_rank,
        topk_fraction=config.topk_fraction,
        seed=config.seed,
    )
    return MPI(
        _world(config, launched),
        method=config.all_reduce,
        compressor=compressor,
        overlap=config.overlap,
        bucket_bytes=None if config.bucket_mb is None else max(1, int(config.bucket_mb * 1e6)),
    )


def _make_mesh(config: TrainConfig, launched: Launched | None) -> Strategy:
    from phalanx.parallel.on_mesh import OnMesh
    from phalanx.parallel.pipeline.staged import Staged

    world = _world(config, launched)
    mesh = config.mesh_of(world.size)
    options = completed(config.model, config.model_options)
    if mesh.pp == 1:
        return OnMesh(
            world,
            mesh,
            model=config.model,
            options=options,
            backend=config.backend,
            zero_stage=config.zero_stage,
            sequence_parallel=config.sequence_parallel,
        )
    return Staged(
        world,
        mesh,
        model=config.model,
        options=options,
        backend=config.backend,
        zero_stage=config.zero_stage,
        sequence_parallel=config.sequence_parallel,
        layout=config.pipeline_layout(mesh),
        global_batch_size=config.global_batch_size(world.size),
    )


def _world(config: TrainConfig, launched: Launched | None) -> World:
    world = join_world(
        timeout_s=config.timeout_s,
        num_started=launched.world_size if launched else None,
        launcher=launched.launcher if launched else "the launcher",
        link=None if config.link is None else Link.parse(config.link),
    )
    if JOB_VARIABLE not in os.environ:  # the launcher is the user's
        report_binding(world)
    return world


def _make_gloo(config: TrainConfig, launched: Launched | None) -> Gloo:
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
        rank=rank, size=size, local_rank=local_rank, store=store, timeout_s=config.timeout_s
    )
