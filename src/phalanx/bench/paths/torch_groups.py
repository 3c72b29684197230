"""torch.distributed on whichever of its backends works here: mpi, gloo, nccl."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from phalanx.bench.config import PathName
from phalanx.bench.paths.path import Array, Memory, MissingPath, Path, Prepared, Terms
from phalanx.bench.plan import Case
from phalanx.comm.dtypes import ReduceOp

BACKENDS: dict[PathName, str] = {"torch": "mpi", "gloo": "gloo", "nccl": "nccl"}
LABELS: dict[PathName, str] = {"torch": "torch mpi", "gloo": "Gloo", "nccl": "NCCL"}


class TorchPath:
    """The front end of torch.distributed over one process group."""

    def __init__(self, name: PathName, group: Any, terms: Terms, device: torch.device) -> None:
        self.name, self.label = name, LABELS[name]
        self._group, self._terms, self._device = group, terms, device

    def prepare(self, case: Case, private: Memory) -> Prepared:
        host_in, host_out = (
            _tensor(private.input, self._terms),
            _tensor(private.output, self._terms),
        )
        if self._device.type == "cpu":
            return Prepared(memory=private, call=self._call(case, host_in, host_out))
        given = host_in.to(self._device)
        result = given if private.output is private.input else host_out.to(self._device)
        call = self._call(case, given, result)
        return Prepared(
            memory=private,
            call=_finished(call),
            put=_finished(lambda: given.copy_(host_in)),
            get=lambda: host_out.copy_(result),
        )

    def close(self) -> None: ...

    def _call(self, case: Case, given: Any, result: Any) -> Callable[[], object]:
        group, op = self._group, _op(self._terms.op)
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
    """The default group of this process, and one more for each other backend."""

    def __init__(self, store: dist.Store, terms: Terms, timeout_s: float) -> None:
        self._terms = terms
        self._timeout = timedelta(seconds=timeout_s)
        dist.init_process_group(
            "gloo", store=store, rank=terms.rank, world_size=terms.ranks, timeout=self._timeout
        )

    def path(self, name: PathName, local_rank: int) -> Path:
        """Collective."""
        reason = obstacle(name, self._terms)
        if reason:
            return MissingPath(name, LABELS[name], reason)
        device = torch.device("cuda", local_rank) if name == "nccl" else torch.device("cpu")
        if name == "nccl":
            torch.cuda.set_device(device)
        group = None
        if name != "gloo":
            group = dist.new_group(backend=BACKENDS[name], timeout=self._timeout)
        return TorchPath(name, group, self._terms, device)

    def close(self) -> None:
        dist.destroy_process_group()


def obstacle(name: PathName, terms: Terms) -> str | None:
    """Why the path cannot be used here, as far as can be seen without trying."""
    if name == "torch" and not dist.is_mpi_available():
        return "torch.distributed has no backend mpi here (dist.is_mpi_available() is false)"
    if name == "nccl":
        if not torch.cuda.is_available():
            return "there is no CUDA GPU that this PyTorch can use"
        if not dist.is_nccl_available():
            return "this PyTorch was built without NCCL"
        if torch.cuda.device_count() < terms.ranks:
            return f"NCCL wants a GPU a rank: {torch.cuda.device_count()} for {terms.ranks} ranks"
    return None


def start_store(terms: Terms, share: Callable[[Any], Any], timeout_s: float) -> dist.Store:
    """A store on a port that rank 0 is given by its system and tells the others. Collective."""
    timeout = timedelta(seconds=timeout_s)
    if terms.rank == 0:
        server = dist.TCPStore(
            "127.0.0.1", 0, terms.ranks, True, timeout=timeout, wait_for_workers=False
        )
        share(server.port)
        return server
    port: int = share(None)
    return dist.TCPStore("127.0.0.1", port, terms.ranks, False, timeout=timeout)


def _finished(call: Callable[[], object]) -> Callable[[], object]:
    """The call with all that it has put on the GPU's queue."""

    def call_and_wait() -> None:
        call()
        torch.cuda.synchronize()

    return call_and_wait


def _tensor(array: Array, terms: Terms) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if terms.dtype.name == "bfloat16" else tensor


def _op(op: ReduceOp) -> Any:
    return getattr(dist.ReduceOp, op.name)
