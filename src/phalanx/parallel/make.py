"""Construction of the strategies whose ranks hold replicas of any model."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from phalanx.comm.faults import is_fault_tolerant
from phalanx.comm.join_world import join_communicator, join_world, report_binding
from phalanx.comm.link import Link
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.compression.make import make_compressor
from phalanx.jobs.detect import Launched
from phalanx.jobs.orphan import JOB_VARIABLE
from phalanx.jobs.variables import is_users
from phalanx.parallel.bitwise import Bitwise
from phalanx.parallel.bitwise_sharded import BitwiseSharded
from phalanx.parallel.ddp import TorchReplicas
from phalanx.parallel.gloo import GlooGroup
from phalanx.parallel.mpi import MPI
from phalanx.parallel.options import MeshOptions, MpiOptions
from phalanx.parallel.parameter_memory import NodeMemory, ParameterMemory
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.rank_devices import RankDevice, describe_sharing, gather_devices
from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.world_group import Backend, WorldGroup
from phalanx.torch_backend.rendezvous import (
    Rendezvous,
    connect_ranks,
    disconnect_ranks,
    fresh_store,
    is_without_mpi,
)
from phalanx.torch_backend.store import open_store

CPU = torch.device("cpu")
RENDEZVOUS = "PHALANX_RENDEZVOUS"  # a file through which ranks without MPI find each other


@dataclass(frozen=True, kw_only=True)
class JobRanks:
    """The ranks of the job, as a process finds them."""

    launched: Launched | None
    timeout_s: float
    communicator: Any = None
    """Communicator of mpi4py, the program's own; None: all ranks that the launcher started."""
    device: torch.device = CPU
    """This rank's; others may have other ones."""

    @property
    def size(self) -> int:
        """Return the number of ranks that the launcher started, spares among them."""
        return self.launched.world_size if self.launched else 1

    def join(self, link: str | None = None) -> World:
        """Return the world of all ranks. Collective.

        Raises: UserError when MPI sees other ranks than the launcher started.
        """
        launched = self.launched
        if self.communicator is not None:
            return join_communicator(self.communicator, timeout_s=self.timeout_s)
        if launched is not None and is_without_mpi(os.environ):
            store, rank, size = next(dist.rendezvous("env://", launched.rank, launched.world_size))
            meeting = Rendezvous(store=fresh_store(store, rank, os.environ), rank=rank, size=size)
            world = connect_ranks(meeting, timedelta(seconds=self.timeout_s))
            world.call_when_closed(disconnect_ranks)
            return world
        emulated = None if link is None else Link.parse(link)
        world = join_world(timeout_s=self.timeout_s, link=emulated)
        if JOB_VARIABLE not in os.environ:  # the launcher is the user's
            report_binding(world)
        return world

    def compare_devices(self, world: World) -> list[RankDevice]:
        """Return the devices of all ranks; print a line, on rank 0, where some share one.
        Collective."""
        devices = gather_devices(world, self.device)
        text = describe_sharing(devices)
        if text and world.rank == 0:
            print(f"phalanx: {text}", file=sys.stderr, flush=True)
        return devices

    def meet(self) -> tuple[dist.Store, int, int, int]:
        """Return a store of all ranks, the rank, their number, and the rank on its node.
        Collective."""
        launched = self.launched
        rank, size = (launched.rank, launched.world_size) if launched else (0, 1)
        local_rank = (launched.local_rank if launched else None) or 0
        if self.communicator is None:
            if RENDEZVOUS in os.environ or launched is None:
                path = os.environ.get(RENDEZVOUS)
                store: dist.Store = dist.FileStore(path, size) if path else dist.HashStore()
                return store, rank, size, local_rank
            if is_users("MASTER_ADDR", os.environ) or launched.launcher == "torchrun":
                return next(dist.rendezvous("env://", rank, size))[0], rank, size, local_rank
        world = self.join()
        store = open_store(world, timedelta(seconds=self.timeout_s))
        world.close()
        return store, world.rank, world.size, world.local_rank


def make_mpi(ranks: JobRanks, options: MpiOptions, *, seed: int, step: StepOptions) -> Strategy:
    """Return replicas whose gradients are summed by our own reducers, or by PyTorch's DDP where any
    rank has an accelerator.

    seed: of compression, the same on every rank. Raises: UserError as `JobRanks.join`.
    """
    world = ranks.join(options.link)
    devices = ranks.compare_devices(world)
    if {each.kind for each in devices} != {"cpu"}:
        return make_on_devices(world, devices, step=step)
    compressor = make_compressor(
        options.compress,
        powersgd_rank=options.powersgd_rank,
        topk_fraction=options.topk_fraction,
        seed=seed,
    )
    return MPI(
        world,
        method=options.all_reduce,
        compressor=compressor,
        overlap=options.overlap,
        bucket_bytes=None if options.bucket_mb is None else max(1, int(options.bucket_mb * 1e6)),
        step_options=step,
    )


def make_bitwise(
    name: str, ranks: JobRanks, *, micro_batches: int, overlaps: bool = False, step: StepOptions
) -> Bitwise:
    """name: sequential, mpi, shared or zero. overlaps: of `mpi`. Raises: UserError as
    `JobRanks.join`, and where nothing can overlap."""
    if overlaps and is_fault_tolerant():
        raise UserError(
            "--overlap on and --survive exclude each other: what a lost rank has not computed "
            "is added after the last backward pass; leave --overlap out"
        )
    world = None if name == "sequential" else ranks.join()
    kinds = {kind.name: kind for kind in (ParameterMemory, NodeMemory)}
    if world is not None and name in kinds:
        return BitwiseSharded(world, kinds[name], micro_batches=micro_batches, step_options=step)
    return Bitwise(world, micro_batches=micro_batches, overlaps=overlaps, step_options=step)


def make_on_mesh(
    ranks: JobRanks,
    options: MeshOptions,
    *,
    layout: PipelineLayout | None,
    global_batch_size: int,
    tensor_plan: object,
    stages: Sequence[str] | None,
    step: StepOptions,
) -> Strategy:
    """Return a strategy that divides the model on a mesh.

    layout: of a pipeline; None: the mesh has no stages. tensor_plan: in place of the model's own.
    stages: layers, as of `layers_of`. Raises: UserError as `JobRanks.join`.
    """
    if options.strategy == "zero" and options.zero_stage == 1:
        from phalanx.parallel.zero import ZeroOne

        world = ranks.join()
        ranks.compare_devices(world)
        return ZeroOne(world, backend=options.backend, step_options=step)
    from phalanx.parallel.on_mesh import OnMesh

    world = ranks.join()
    mesh = options.mesh_of(world.size)
    if layout is None:
        return OnMesh(world, mesh, options, tensor_plan=tensor_plan, step_options=step)
    from phalanx.parallel.pipeline.staged import Staged

    return Staged(
        world,
        mesh,
        options,
        layout=layout,
        global_batch_size=global_batch_size,
        tensor_plan=tensor_plan,
        stages=stages,
        step_options=step,
    )


def make_gloo(ranks: JobRanks, *, step: StepOptions) -> TorchReplicas:
    """Raises: UserError as `JobRanks.join`."""
    store, rank, size, local_rank = ranks.meet()
    group = GlooGroup(
        rank=rank, size=size, local_rank=local_rank, store=store, timeout_s=ranks.timeout_s
    )
    return TorchReplicas(group, backend="gloo", step_options=step)


def make_on_devices(
    world: World, devices: Sequence[RankDevice], *, step: StepOptions
) -> TorchReplicas:
    """Return replicas whose gradients NCCL sums where each rank has a GPU of its own, else backend
    mpi, which takes tensors of several kinds of devices. devices: of the ranks."""
    has_nccl = all(each.kind == "cuda" and each.has_nccl for each in devices)
    are_exclusive = len({each[:2] for each in devices}) == world.size
    backend: Backend = "nccl" if has_nccl and are_exclusive else "mpi"
    group = WorldGroup(world, torch_backend=backend)
    return TorchReplicas(group, backend=f"torch.distributed on {backend}", step_options=step)
