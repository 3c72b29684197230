"""Staging of GPU tensors: passed directly to a GPU-aware MPI, or copied through pinned memory.

A call waits for the work that the current stream held when it was made, and then runs on its own
stream: nothing waits for the whole device. Staged through the host, the stream of the waiter waits
for the copy back; passed directly, the call itself ends only when the data is in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from phalanx.comm.buffer import Buffer, is_usable_in_place
from phalanx.comm.device_transport import DeviceOps
from phalanx.torch_backend.device_memory import DeviceMemory, can_reduce
from phalanx.torch_backend.tensors import Copies, TensorStaging


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


PART_BYTES = 4 * 2**20
"""Bytes of a part of a tensor, at most, that moves while the part before it is summed."""
NUM_PLACES = 3
"""Parts in pinned memory: on its way from the device, in the sum, and on its way back."""


class PinnedHostStaging(TensorStaging):
    """Staging through pinned host memory, for tensors of one device.

    Part n + 1 is loaded while part n is in its call and part n - 1 is stored: each way has a stream
    and each copy an event. A place is filled again when what was there has been stored.
    """

    def __init__(self, device: torch.device, streams: Any = None) -> None:
        """streams: of the device."""
        super().__init__()
        self._streams = streams or AcceleratorStreams
        self._device = device
        self._ready = self._streams.current_stream(device).record_event()
        self._in, self._out = self._streams.Stream(device), self._streams.Stream(device)
        self._loaded: list[Any] = []
        self._stored: list[Any] = []

    def in_parts(
        self,
        tensor: Tensor,
        ranges: Sequence[range],
        is_read: bool,
        is_written: bool,
        factor: float | Tensor | None,
    ) -> list[Buffer]:
        """Return a buffer for each of `ranges`, in pinned memory of a few of them."""
        has_factors = isinstance(factor, Tensor) and factor.dim() > 0
        if len(ranges) == 1 or has_factors or not is_usable_in_place(tensor):
            return super().in_parts(tensor, ranges, is_read, is_written, factor)
        flat = tensor.detach().view(-1)
        longest = flat[: max(len(part) for part in ranges)]
        places = [self._allocate_copy(longest) for _ in ranges[:NUM_PLACES]]
        buffers = []
        self._parts = []
        for number, part in enumerate(ranges):
            self._parts.append(Copies())
            place = places[number % NUM_PLACES][: len(part)]
            source = flat[part.start : part.stop]
            buffers.append(self.buffer(source, is_read, is_written, factor, place))
        return buffers

    def load(self, part: int = 0) -> None:
        """Begin to load the next part, too; return when this one is loaded."""
        for number in range(len(self._loaded), min(part + 2, len(self._parts))):
            if number >= NUM_PLACES:
                self._stored[number - NUM_PLACES].synchronize()
            tensors = [tensor for tensor, _, _ in self._parts[number].loads]
            load = partial(super().load, number)
            self._loaded.append(self._copy(self._in, load, tensors))
        self._loaded[part].synchronize()

    def store(self, part: int = 0) -> None:
        tensors = [tensor for tensor, _ in self._parts[part].stores]
        store = partial(super().store, part)
        self._stored.append(self._copy(self._out, store, tensors))

    def _copy(self, stream: Any, copy: Callable[[], None], tensors: Sequence[Tensor]) -> Any:
        """Call `copy` on a stream of this call; return the event of its end."""
        with self._streams.stream(stream):
            stream.wait_event(self._ready)
            copy()
            for tensor in tensors:
                tensor.record_stream(stream)
        return stream.record_event()

    def sync_stream(self) -> None:
        if self._stored:
            self._streams.current_stream(self._device).wait_event(self._stored[-1])

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

    def wrap(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        [call] = calls  # copies would not be beside it
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
