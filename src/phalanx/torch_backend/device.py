"""Tensors on a GPU: staged through pinned host memory, in the order of their stream.

The engine works on host memory. A call on GPU tensors waits for what their stream was doing when it
was made, copies on a stream of its own, and lets the stream of whoever waits for it wait for the
copy back: nobody waits for the whole device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.torch_backend.tensors import Places


def device_types() -> list[str]:
    """What tensors may lie on: the CPU and the accelerator of this machine, if it has one."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def is_staged(kind: str, devices: Sequence[torch.device]) -> bool:
    return kind != "cpu" and kind in {device.type for device in devices}


class StagedPlaces(Places):
    """Host copies of all tensors of a call on one device."""

    def __init__(self, device: torch.device, streams: Any = None) -> None:
        """streams: the module with the streams and events of the device."""
        super().__init__()
        self._streams = streams or torch.get_device_module(device)
        self._device = device
        self._ready = self._streams.current_stream(device).record_event()
        self._stream = self._streams.Stream(device)
        self._stored: Any = None

    def load(self) -> None:
        with torch.no_grad(), self._streams.stream(self._stream):
            self._stream.wait_event(self._ready)
            for tensor, copy in self._loads:
                copy.copy_(tensor, non_blocking=True)
                tensor.record_stream(self._stream)
        self._stream.record_event().synchronize()

    def store(self) -> None:
        with torch.no_grad(), self._streams.stream(self._stream):
            self._stream.wait_event(self._ready)
            for tensor, copy in self._stores:
                tensor.copy_(copy, non_blocking=True)
                tensor.record_stream(self._stream)
        self._stored = self._stream.record_event()

    def after_wait(self) -> None:
        if self._stored is not None:
            self._streams.current_stream(self._device).wait_event(self._stored)

    def _lies_in_place(self, tensor: Tensor) -> bool:  # noqa: ARG002
        return False

    def _copy_of(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
