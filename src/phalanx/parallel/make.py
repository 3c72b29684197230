"""Construction of the strategies by their names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from phalanx.gradients.make_reducer import AllReduce, FixedTree
from phalanx.jobs.detect import Launched
from phalanx.jobs.orphan import JOB_VARIABLE
from phalanx.jobs.survival import num_spares
from phalanx.jobs.variables import RENDEZVOUS, is_users
from phalanx.parallel.ddp import TorchReplicas
from phalanx.parallel.gloo import GlooGroup
from phalanx.parallel.local import Local
from phalanx.parallel.options import StrategyOptions
from phalanx.parallel.parameter_memory import NodeMemory, ParameterMemory
from phalanx.parallel.pipeline.bitwise import BitwisePipeline, Seeding
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.rank_devices import (
    RankDevice,
    describe_sharing,
    gather_devices,
    kinds_of,
)
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.server import Server
from phalanx.parallel.sharded_state import ShardedState, check_survivable
from phalanx.parallel.shared import Shared
from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.surviving_group import SurvivingGroup
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


@dataclass(frozen=True, kw_only=True)
class JobRanks:
    """The ranks of the job, as a process finds them."""

    launched: Launched | None
    timeout_s: float
    communicator: Any = None
    """mpi4py communicator of the program; None: all ranks that the launcher started."""
    device: torch.device = CPU
    """Device of this rank; other ranks may have other devices."""

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
        """Return the devices of all ranks; print a line, on rank 0, where some share one. Where
        there are several kinds all go through the memory of the hosts. Collective."""
        devices = gather_devices(world, self.device)
        world.is_gpu_aware &= len({each.kind for each in devices}) == 1
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

    def over_gloo(self, purpose: str) -> GlooGroup:
        """Return all ranks as PyTorch's Gloo connects them. Collective. purpose: of the group,
        another one than that of any other of the job."""
        store, rank, size, local_rank = self.meet()
        return GlooGroup(
            rank=rank,
            size=size,
            local_rank=local_rank,
            store=dist.PrefixStore(purpose, store),
            timeout_s=self.timeout_s,
        )

    def before_run(self, *, is_gloo: bool) -> RunGroup:
        """Return a separate group of all ranks, for what they agree on first. Collective.

        is_gloo: MPI is not needed.
        """
        return self.over_gloo("phalanx agreement") if is_gloo else WorldGroup(self.join())


@dataclass(frozen=True, kw_only=True)
class StrategySetting:
    """Everything that a strategy is made of."""

    ranks: JobRanks
    options: StrategyOptions
    step: StepOptions
    seed: int
    batch_size: int
    """Samples of the global batch."""
    micro_batches: int
    """Micro-batches of a full one."""
    layout: PipelineLayout | None
    """Layout of a pipeline; None: the ranks have no stages."""
    tensor_plan: object
    """Tensor plan in place of the model's."""
    stages: Sequence[str] | None
    """Layers, as of `layers_of`."""
    seed_micro_batch: Seeding

    @property
    def tree(self) -> FixedTree:
        """Order of the sums of a bitwise run."""
        return FixedTree(micro_batches=self.micro_batches, overlaps=self.options.overlap == "on")


@contextmanager
def closing_where_refused(joined: World | RunGroup) -> Iterator[None]:
    """Close what all ranks have joined where they cannot work together so."""
    try:
        yield
    except UserError:
        joined.close()
        raise


def make_sequential(setting: StrategySetting) -> Replicas:
    alone = Replicas(RunGroup(), setting.step)
    alone.coordinates = {}
    return alone


def make_mpi(setting: StrategySetting) -> Replicas | TorchReplicas:
    """Return replicas whose gradients are summed by our reducers, or by PyTorch's DDP if any rank
    has an accelerator."""
    options = setting.options
    world = setting.ranks.join(options.link)
    devices = setting.ranks.compare_devices(world)
    if {each.kind for each in devices} != {"cpu"}:
        with closing_where_refused(world):
            _check_on_devices(options)
        return make_on_devices(world, devices, step=setting.step)
    compressor = make_compressor(
        options.compress,
        powersgd_rank=options.powersgd_rank,
        topk_fraction=options.topk_fraction,
        seed=setting.seed,
    )
    bucket_mb = options.bucket_mb
    summation = AllReduce(
        method=options.all_reduce,
        compressor=compressor,
        overlap=options.overlap,
        bucket_bytes=None if bucket_mb is None else max(1, int(bucket_mb * 1e6)),
    )
    return Replicas(WorldGroup(world), setting.step, summation=summation)


def _check_on_devices(options: StrategyOptions) -> None:
    """Raises: UserError for what has no path where any rank has an accelerator: told by one whose
    own device is the CPU, too."""
    usual = StrategyOptions(strategy="mpi")
    if given := [name for name, value in vars(options).items() if value != vars(usual)[name]]:
        raise UserError(
            f"{given[0]}= is for gradients on the CPU, but other ranks have accelerators: leave it "
            "out"
        )
    if dist.is_initialized():
        raise UserError(
            "several ranks with accelerators need the default group of torch.distributed, but the "
            "program, or a run that failed, has already made one: call "
            "torch.distributed.destroy_process_group() first"
        )


def make_on_devices(
    world: World, devices: Sequence[RankDevice], *, step: StepOptions
) -> TorchReplicas:
    """Return replicas whose gradients NCCL sums if each rank has a separate GPU, else backend mpi,
    which takes tensors of several kinds of devices. devices: of the ranks."""
    has_nccl = all(each.kind == "cuda" and each.has_nccl for each in devices)
    are_exclusive = len({each.place for each in devices}) == world.size
    backend: Backend = "nccl" if has_nccl and are_exclusive else "mpi"
    group, name = WorldGroup(world, torch_backend=backend), f"torch.distributed on {backend}"
    replicas = TorchReplicas(group, backend=name, step_options=step)
    replicas.device_kinds = kinds_of(devices)
    return replicas


def make_gloo(setting: StrategySetting) -> TorchReplicas:
    group = setting.ranks.over_gloo("phalanx run")
    return TorchReplicas(group, backend="gloo", step_options=setting.step)


def make_on_mesh(setting: StrategySetting) -> Strategy:
    """Return a strategy that divides the model on a mesh."""
    options, tensor_plan = setting.options, setting.tensor_plan
    if options.strategy == "zero" and options.zero_stage == 1:
        from phalanx.parallel.zero import ZeroOne

        world = setting.ranks.join()
        devices = setting.ranks.compare_devices(world)
        zero = ZeroOne(world, backend=options.backend, step_options=setting.step)
        zero.device_kinds = kinds_of(devices)
        return zero
    from phalanx.parallel.on_mesh import OnMesh

    world = setting.ranks.join()
    mesh = options.mesh_of(world.size)
    if setting.layout is None:
        return OnMesh(world, mesh, options, tensor_plan=tensor_plan, step_options=setting.step)
    from phalanx.parallel.pipeline.staged import Staged

    return Staged(
        world,
        mesh,
        options,
        layout=setting.layout,
        global_batch_size=setting.batch_size,
        tensor_plan=tensor_plan,
        stages=setting.stages,
        step_options=setting.step,
    )


def make_bitwise(setting: StrategySetting, memory: type[ParameterMemory] | None = None) -> Replicas:
    """memory: of parameters whose optimizer state is divided; None: it is not."""
    tree, world = setting.tree, setting.ranks.join()
    if memory is not None and is_fault_tolerant():
        with closing_where_refused(world):
            check_survivable(memory.name, num_nodes=len(set(world.group.nodes)))
    spares = num_spares(os.environ)
    group = SurvivingGroup(world, spares) if is_fault_tolerant() else WorldGroup(world)
    if memory is None:
        return Replicas(group, setting.step, summation=tree)
    return ShardedState(group, setting.step, memory=memory, summation=tree)


def make_bitwise_pipeline(setting: StrategySetting) -> BitwisePipeline:
    assert setting.layout is not None, "several ranks"
    return BitwisePipeline(
        setting.ranks.join(),
        setting.layout,
        seed_micro_batch=setting.seed_micro_batch,
        global_batch_size=setting.batch_size,
        stages=setting.stages,
        step_options=setting.step,
    )


STRATEGIES: Mapping[str, Callable[[StrategySetting], Strategy]] = {
    "sequential": make_sequential,
    "mpi": make_mpi,
    "shared": lambda of: Shared(of.ranks.join(), step_options=of.step),
    "gloo": make_gloo,
    "server": lambda of: Server(of.ranks.join(), of.options, step_options=of.step),
    "local": lambda of: Local(of.ranks.join(), of.options, step_options=of.step),
    "zero": make_on_mesh,
    "tensor": make_on_mesh,
    "pipeline": make_on_mesh,
    "mesh": make_on_mesh,
}
"""Strategies by their names, each made when all its ranks are present. Collective.

Raise: UserError as `JobRanks.join`, and where the ranks cannot work together so.
"""

BITWISE: Mapping[str, Callable[[StrategySetting], Strategy]] = {
    "sequential": lambda of: Replicas(RunGroup(), of.step, summation=of.tree),
    "mpi": make_bitwise,
    "shared": lambda of: make_bitwise(of, NodeMemory),
    "zero": lambda of: make_bitwise(of, ParameterMemory),
    "pipeline": make_bitwise_pipeline,
}
"""The same of those whose results have the same bits on any number of ranks."""
