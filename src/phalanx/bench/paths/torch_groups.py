"""torch.distributed on its backends mpi, gloo and nccl, as far as available."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from phalanx.bench.call_schedule import Case
from phalanx.bench.config import PathName
from phalanx.bench.paths.path import (
    Array,
    BenchParams,
    BenchPath,
    Call,
    CaseBuffers,
    PreparedCase,
    unavailable,
)
from phalanx.comm.world import World
from phalanx.run.device import choose_device
from phalanx.torch_backend.process_group import ProcessGroupMPI
from phalanx.torch_backend.store import gloo_interface, open_store

LABELS: dict[PathName, str] = {"torch": "torch mpi", "gloo": "Gloo", "nccl": "NCCL"}


def start_torch(world: World, params: BenchParams, timeout: timedelta) -> None:
    """Make the default process group, on gloo. Collective."""
    store = open_store(world, timeout)
    with gloo_interface(store):
        dist.init_process_group(
            "gloo", store=store, rank=params.rank, world_size=params.ranks, timeout=timeout
        )


def torch_path(
    name: PathName, params: BenchParams, local_rank: int, timeout: timedelta
) -> BenchPath:
    """Return the path of a backend, with a process group of its own. Collective."""
    if reason := unavailable_reason(name, params):
        return unavailable(name, LABELS[name], reason)
    device, group, label = torch.device("cpu"), None, LABELS[name]
    if name == "torch":
        device = choose_device(params.device, local_rank)
    if name == "nccl":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    if name != "gloo":
        group = dist.new_group(backend="mpi" if name == "torch" else name, timeout=timeout)
    if isinstance(group, ProcessGroupMPI) and device.type != "cpu":
        paths = {"direct": "direct", "host": "pinned"}
        label = f"{label} {device.type}, {paths[group.path_of(device)]}"
    prepare = partial(_prepare, group, params, device)
    return BenchPath(name=name, label=label, prepare=prepare)


def _prepare(
    group: Any, params: BenchParams, device: torch.device, case: Case, private: CaseBuffers
) -> PreparedCase:
    host_in, host_out = tensor_of(private.input, params), tensor_of(private.output, params)
    op = getattr(dist.ReduceOp, params.op.name)
    if device.type == "cpu":
        return PreparedCase(memory=private, call=_call(group, op, case, host_in, host_out))
    given = host_in.to(device)
    result = given if private.output is private.input else host_out.to(device)
    return PreparedCase(
        memory=private,
        call=_finished(_call(group, op, case, given, result)),
        copy_in=_finished(lambda: given.copy_(host_in)),
        copy_out=lambda: host_out.copy_(result),
    )


def _call(group: Any, op: Any, case: Case, given: Any, result: Any) -> Call:
    match case.collective:
        case "all_reduce":
            return lambda: dist.all_reduce(given, op, group)
        case "broadcast":
            return lambda: dist.broadcast(given, 0, group)
        case "all_gather":
            return lambda: dist.all_gather_into_tensor(result, given, group)
        case "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(result, given, op, group)
        case "all_to_all":
            return lambda: dist.all_to_all_single(result, given, group=group)
        case "barrier":
            return lambda: dist.barrier(group)


def unavailable_reason(name: PathName, params: BenchParams) -> str | None:
    """Return why the path cannot run here, as far as known without trying; else None."""
    if name == "torch" and not dist.is_mpi_available():
        return "torch.distributed has no backend mpi here (dist.is_mpi_available() is false)"
    if name == "nccl":
        if not torch.cuda.is_available():
            return "there is no CUDA GPU that this PyTorch can use"
        if not dist.is_nccl_available():
            return "this PyTorch was built without NCCL"
        if torch.cuda.device_count() < params.ranks:
            return (
                f"NCCL needs a GPU per rank: {torch.cuda.device_count()} for {params.ranks} ranks"
            )
    return None


def _finished(call: Call) -> Call:
    """Return the call followed by a GPU synchronization."""

    def call_and_wait() -> None:
        call()
        torch.accelerator.synchronize()

    return call_and_wait


def tensor_of(array: Array, params: BenchParams) -> torch.Tensor:
    """Return a tensor of the measured dtype on the memory of `array`."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if params.dtype.name == "bfloat16" else tensor
