"""torch.distributed on its backends mpi, gloo and nccl, as far as available."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from phalanx.bench.config import PathName
from phalanx.bench.paths.path import (
    Array,
    BenchParams,
    BenchPath,
    CaseBuffers,
    PreparedCase,
    UnavailablePath,
)
from phalanx.bench.plan import Case
from phalanx.comm.dtypes import ReduceOp
from phalanx.torch_backend.leave_group import destroy_default_group
from phalanx.torch_backend.store import gloo_interface

BACKENDS: dict[PathName, str] = {"torch": "mpi", "gloo": "gloo", "nccl": "nccl"}
LABELS: dict[PathName, str] = {"torch": "torch mpi", "gloo": "Gloo", "nccl": "NCCL"}


class TorchPath(BenchPath):
    """torch.distributed on one process group."""

    def __init__(
        self, name: PathName, group: Any, params: BenchParams, device: torch.device
    ) -> None:
        self.name, self.label = name, LABELS[name]
        self._group, self._params, self._device = group, params, device

    def prepare(self, case: Case, private: CaseBuffers) -> PreparedCase:
        host_in, host_out = (
            _tensor(private.input, self._params),
            _tensor(private.output, self._params),
        )
        if self._device.type == "cpu":
            return PreparedCase(memory=private, call=self._call(case, host_in, host_out))
        given = host_in.to(self._device)
        result = given if private.output is private.input else host_out.to(self._device)
        call = self._call(case, given, result)
        return PreparedCase(
            memory=private,
            call=_finished(call),
            copy_in=_finished(lambda: given.copy_(host_in)),
            copy_out=lambda: host_out.copy_(result),
        )

    def _call(self, case: Case, given: Any, result: Any) -> Callable[[], object]:
        group, op = self._group, _op(self._params.op)
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


class TorchGroups:
    """The default process group, on gloo, and one for each other backend."""

    def __init__(self, store: dist.Store, params: BenchParams, timeout_s: float) -> None:
        self._params = params
        self._timeout = timedelta(seconds=timeout_s)
        with gloo_interface(store):
            dist.init_process_group(
                "gloo",
                store=store,
                rank=params.rank,
                world_size=params.ranks,
                timeout=self._timeout,
            )

    def path(self, name: PathName, local_rank: int) -> BenchPath:
        """Return the path of a backend. Collective."""
        reason = unavailable_reason(name, self._params)
        if reason:
            return UnavailablePath(name, LABELS[name], reason)
        device = torch.device("cuda", local_rank) if name == "nccl" else torch.device("cpu")
        if name == "nccl":
            torch.cuda.set_device(device)
        group = None
        if name != "gloo":
            group = dist.new_group(backend=BACKENDS[name], timeout=self._timeout)
        return TorchPath(name, group, self._params, device)

    def close(self) -> None:
        destroy_default_group()


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
            return f"NCCL wants a GPU a rank: {torch.cuda.device_count()} for {params.ranks} ranks"
    return None


def _finished(call: Callable[[], object]) -> Callable[[], object]:
    """Return the call followed by a GPU synchronization."""

    def call_and_wait() -> None:
        call()
        torch.cuda.synchronize()

    return call_and_wait


def _tensor(array: Array, params: BenchParams) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if params.dtype.name == "bfloat16" else tensor


def _op(op: ReduceOp) -> Any:
    return getattr(dist.ReduceOp, op.name)
