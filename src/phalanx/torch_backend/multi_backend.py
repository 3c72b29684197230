"""Backend strings such as "cpu:mpi,cuda:nccl": the tensors' device selects the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from phalanx.torch_backend.process_group import ProcessGroupMPI


class MultiBackendProcessGroup(ProcessGroupMPI):
    """Backend mpi for some device types, process groups of other backends for the rest."""

    supports_splitting = False

    def __init__(self, *args: Any, other_backends: Mapping[str, Any]) -> None:
        super().__init__(*args)
        self._other_backends = dict(other_backends)
        mine = [device for device in self._context.devices if device.type not in other_backends]
        self._context.devices = mine + [torch.device(kind) for kind in other_backends]

    def _get_backend(self, device: torch.device) -> Any:
        if device.type in self._other_backends:
            return self._other_backends[device.type]._get_backend(device)
        return super()._get_backend(device)

    def _start_coalescing(self, device: torch.device) -> None:
        other = self._other_backends.get(device.type)
        other._start_coalescing(device) if other else super()._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        other = self._other_backends.get(device.type)
        return other._end_coalescing(device) if other else super()._end_coalescing(device)


def _device_type_of(arguments: Any) -> str | None:
    """Return the device type of the first tensor in `arguments`, also in nested lists."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            return argument.device.type
        if isinstance(argument, list) and (kind := _device_type_of(argument)) is not None:
            return kind
    return None


def _dispatch(name: str) -> Callable[..., Any]:
    own = getattr(ProcessGroupMPI, name)

    def method(self: MultiBackendProcessGroup, *args: Any, **kwargs: Any) -> Any:
        other = self._other_backends.get(_device_type_of(args) or "")
        return getattr(other, name)(*args, **kwargs) if other else own(self, *args, **kwargs)

    method.__name__ = name
    return method


for _name in (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    *("allgather", "all_gather_single", "_allgather_base", "allgather_coalesced"),
    *("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    *("alltoall", "all_to_all_single", "alltoall_base", "send", "recv", "recv_anysource"),
):
    setattr(MultiBackendProcessGroup, _name, _dispatch(_name))
