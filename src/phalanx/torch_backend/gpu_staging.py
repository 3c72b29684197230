"""Staging of GPU tensors: passed directly to a GPU-aware MPI, or copied through pinned memory.

A call waits for the work that the current stream held when it was made, and then runs on its own
stream: nothing waits for the whole device. Staged through the host, the stream of the waiter waits
for the copy back; passed directly, the call itself ends only when the data is in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from phalanx.comm.buffer import is_usable_in_place
from phalanx.comm.device_transport import DeviceOps
from phalanx.torch_backend.device_memory import DeviceMemory, can_reduce
from phalanx.torch_backend.tensors import TensorStaging


def device_types() -> list[str]:
    """Return the supported device types: the CPU, and the accelerator of this machine if any."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def is_staged(kind: str, devices: Sequence[torch.device]) -> bool:
    return kind != "cpu" and kind in {device.type for device in devices}


def is_direct(dtype: torch.dtype, *, reduces: bool, is_gpu_aware: bool) -> bool:
    """Return whether MPI gets the GPU memory of a collective itself, without staging.

    The same on every rank: strides, which may differ, do not count.
    """
    return is_gpu_aware and (can_reduce(dtype) or not reduces)


class AcceleratorStreams:
    """Streams of the machine's accelerator, of any vendor."""

    Stream = torch.Stream
    current_stream = staticmethod(torch.accelerator.current_stream)

    @staticmethod
    def stream(stream: Any) -> AbstractContextManager[Any]:
        """Return what makes a stream the current one: itself."""
        return stream  # type: ignore[no-any-return]


class PinnedHostStaging(TensorStaging):
    """Staging through pinned host memory, for tensors of one device."""

    def __init__(self, device: torch.device, streams: Any = None) -> None:
        """streams: of the device."""
        super().__init__()
        self._streams = streams or AcceleratorStreams
        self._device = device
        self._ready = self._streams.current_stream(device).record_event()
        self._stream = self._streams.Stream(device)
        self._stored: Any = None

    def load(self) -> None:
        self._copy(super().load, [tensor for tensor, _, _ in self._loads]).synchronize()

    def store(self) -> None:
        self._stored = self._copy(super().store, [tensor for tensor, _ in self._stores])

    def _copy(self, copy: Callable[[], None], tensors: Sequence[Tensor]) -> Any:
        """Call `copy` on the stream of this call; return the event of its end."""
        with self._streams.stream(self._stream):
            self._stream.wait_event(self._ready)
            copy()
            for tensor in tensors:
                tensor.record_stream(self._stream)
        return self._stream.record_event()

    def sync_stream(self) -> None:
        if self._stored is not None:
            self._streams.current_stream(self._device).wait_event(self._stored)

    def _is_usable_in_place(self, tensor: Tensor) -> bool:  # noqa: ARG002
        return False

    def _allocate_copy(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)


class DirectDeviceStaging(TensorStaging):
    """Buffers on the GPU itself, for a GPU-aware MPI; non-contiguous tensors get a copy there."""

    def __init__(
        self,
        device: torch.device,
        on_device: Callable[[DeviceOps], AbstractContextManager[None]],
        streams: Any = None,
    ) -> None:
        """on_device: `Group.on_device`; streams: of the device."""
        super().__init__()
        self._device, self._on_device = device, on_device
        self._streams = streams or AcceleratorStreams
        self._stream = self._streams.Stream(device)
        self._memory = DeviceMemory(device, self._streams)

    def wrap(self, call: Callable[[], object]) -> Callable[[], object]:
        ready = self._streams.current_stream(self._device).record_event()

        def on_the_side() -> None:
            with torch.no_grad(), self._streams.stream(self._stream):
                self._stream.wait_event(ready)
                self.load()
                with self._on_device(self._memory):
                    call()
                self.store()
                self._memory.finish()

        return on_the_side

    def _is_usable_in_place(self, tensor: Tensor) -> bool:
        return tensor.device == self._device and is_usable_in_place(tensor)

    def _allocate_copy(self, tensor: Tensor) -> Tensor:
        with self._streams.stream(self._stream):  # allocated on the stream that uses and frees it
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
