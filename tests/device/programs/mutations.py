"""Each rank: collectives.py with a fault of staging or transport put in, which it must show.

Arguments: the name of an emulated device, how often, "few", and the name of the fault. Where MPI
is aware of the device, tensors go to it directly, and else by pinned memory.
"""

import runpy
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from phalanx.comm import device_transport
from phalanx.torch_backend import gpu_staging, point_to_point_work, work
from phalanx.torch_backend.device_memory import DeviceMemory
from phalanx.torch_backend.gpu_staging import AcceleratorStreams, DirectDeviceStaging
from phalanx.torch_backend.gpu_staging import PinnedHostStaging as Pinned
from phalanx.torch_backend.tensors import TensorStaging

Fault = Callable[[], None]
WRONG, CRASH, PAGEABLE = "are wrong", "[Ss]egmentation fault", "needs pinned memory on the host"
FAULTS: dict[str, Fault] = {}
STAGED: dict[str, str] = {}
"""Of each fault of staging, the symptom by which a run shows it."""
USED = (
    *((Pinned, word) for word in ("_copy", "_is_usable_in_place", "load", "store", "sync_stream")),
    (TensorStaging, "_allocate_copy"),
    (DirectDeviceStaging, "wrap"),
    (DeviceMemory, "finish"),
    (device_transport.DeviceTransport, "start"),
    (work, "gpus_of"),
    (work.PendingWork, "_complete"),
)
"""What the faults replace."""
AWARE: dict[str, str] = {}
"""The same of faults where MPI gets the tensors themselves."""


def fault_of(table: dict[str, str], symptom: str = WRONG) -> Callable[[Fault], Fault]:
    def add(fault: Fault) -> Fault:
        FAULTS[fault.__name__], table[fault.__name__] = fault, symptom
        return fault

    return add


def nothing(*_: Any, **__: Any) -> None:
    pass


class Deaf(torch.Stream):
    """A stream that waits for no event."""

    wait_event = nothing


@fault_of(STAGED)
def copy_in_before_tensor_is_written() -> None:
    class Streams(AcceleratorStreams):
        Stream = Deaf

    gpu_staging.AcceleratorStreams = Streams  # type: ignore[misc]


def after_construction(change: Callable[[Any], None]) -> None:
    original: Any = Pinned.__init__

    def construct(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        change(self)

    Pinned.__init__ = construct  # type: ignore[method-assign]


@fault_of(STAGED)
def sum_before_copy() -> None:
    class Unawaited(list[Any]):
        def __getitem__(self, _: Any) -> Any:
            return SimpleNamespace(synchronize=nothing)

    after_construction(lambda self: setattr(self, "_loaded", Unawaited()))


@fault_of(STAGED)
def copy_in_on_the_threads_own_stream() -> None:
    Pinned.load = lambda self, part=0: (  # type: ignore[method-assign]
        TensorStaging.load(self, part),
        torch.accelerator.current_stream(self._device).synchronize(),
    )[0]


@fault_of(STAGED)
def copy_back_on_the_threads_own_stream() -> None:
    def store(self: Any, part: int = 0) -> None:
        TensorStaging.store(self, part)
        for tensor, _ in self._parts[part].stores:
            tensor.record_stream(torch.accelerator.current_stream(self._device))
        self._stored.append(self._out.record_event())

    Pinned.store = store  # type: ignore[method-assign]


@fault_of(STAGED)
def event_recorded_when_the_copy_begins() -> None:
    def load(self: Any, part: int = 0) -> None:
        self._ready = torch.accelerator.current_stream(self._device).record_event()
        original(self, part)

    original, Pinned.load = Pinned.load, load  # type: ignore[method-assign]


@fault_of(STAGED)
def event_of_another_stream() -> None:
    def change(self: Any) -> None:
        self._ready = torch.Stream(self._device).record_event()

    after_construction(change)


@fault_of(STAGED)
def event_of_the_current_device() -> None:
    def change(self: Any) -> None:
        self._ready = torch.accelerator.current_stream().record_event()

    after_construction(change)


@fault_of(STAGED)
def no_wait_for_the_copy_back() -> None:
    Pinned.sync_stream = nothing  # type: ignore[method-assign]


@fault_of(STAGED)
def another_stream_waits_for_the_copy_back() -> None:
    def sync_stream(self: Any) -> None:
        if self._stored:
            torch.Stream(self._device).wait_event(self._stored[-1])

    Pinned.sync_stream = sync_stream  # type: ignore[method-assign]


@fault_of(STAGED)
def end_of_the_copy_back_recorded_before_it() -> None:
    def copy(self: Any, stream: Any, run: Callable[[], None], tensors: list[Tensor]) -> Any:
        with stream:
            stream.wait_event(self._ready)
            event = stream.record_event()
            run()
            for tensor in tensors:
                tensor.record_stream(stream)
        return event

    Pinned._copy = copy  # type: ignore[method-assign]


@fault_of(STAGED)
def only_the_first_part_is_awaited() -> None:
    class First(list[Any]):
        def __getitem__(self, _: Any) -> Any:
            return super().__getitem__(0)

    after_construction(lambda self: setattr(self, "_loaded", First()))


@fault_of(STAGED)
def place_filled_again_before_it_is_stored() -> None:
    class Unawaited(list[Any]):
        def __getitem__(self, part: Any) -> Any:
            return super().__getitem__(part) if part < 0 else SimpleNamespace(synchronize=nothing)

    after_construction(lambda self: setattr(self, "_stored", Unawaited()))


@fault_of(STAGED, PAGEABLE)
def pageable_copies() -> None:
    Pinned._allocate_copy = TensorStaging._allocate_copy  # type: ignore[method-assign]


@fault_of(STAGED, CRASH)
def host_reads_the_device() -> None:
    Pinned._is_usable_in_place = lambda *_: True  # type: ignore[method-assign]


@fault_of(STAGED, CRASH)
def memory_freed_while_it_is_copied_to() -> None:
    Tensor.record_stream = nothing  # type: ignore[method-assign]


@fault_of(STAGED)
def futures_wait_for_no_stream() -> None:
    work.gpus_of = lambda _: []


@fault_of(STAGED)
def futures_end_before_the_copy_back() -> None:
    original = work.PendingWork._complete

    def complete(self: Any, promise: Any) -> None:
        staging, self._staging = self._staging, None
        original(self, promise)
        self._staging = staging

    work.PendingWork._complete = complete  # type: ignore[method-assign]


@fault_of(STAGED)
def received_messages_stay_on_the_host() -> None:
    original: Any = point_to_point_work.PointToPointWork.__init__

    def construct(self: Any, *arguments: Any, **more: Any) -> None:
        original(self, *arguments, **more)
        self._store = nothing

    point_to_point_work.PointToPointWork.__init__ = construct  # type: ignore[method-assign]


@fault_of(AWARE)
def message_before_the_device_has_written() -> None:
    def start(self: Any, sends: Any, receives: Any) -> Any:
        return self._transport.start(sends, receives)

    device_transport.DeviceTransport.start = start  # type: ignore[method-assign]


@fault_of(AWARE)
def call_begins_before_its_tensor_is_written() -> None:
    class Streams(AcceleratorStreams):
        Stream = Deaf

    gpu_staging.AcceleratorStreams = Streams  # type: ignore[misc]


@fault_of(AWARE, f"{WRONG}|{CRASH}")
def call_ends_before_the_device_has_reduced() -> None:
    DeviceMemory.finish = nothing  # type: ignore[method-assign]


@fault_of(AWARE, f"{WRONG}|{CRASH}")
def reduced_on_another_stream() -> None:
    class Streams(AcceleratorStreams):
        stream = staticmethod(lambda _: nullcontext())

    gpu_staging.AcceleratorStreams = Streams  # type: ignore[misc]


@fault_of(AWARE)
def event_recorded_when_the_call_begins() -> None:
    def wrap(self: Any, call: Callable[[], object]) -> Callable[[], object]:
        return lambda: original(self, call)()

    original, DirectDeviceStaging.wrap = DirectDeviceStaging.wrap, wrap  # type: ignore[method-assign]


if __name__ == "__main__":
    name = sys.argv.pop()
    for owner, word in USED:
        assert hasattr(owner, word), f"{owner} has no {word}: the fault would be none"
    FAULTS[name]()
    print(f"{name} is in", flush=True)
    runpy.run_path(str(Path(__file__).with_name("collectives.py")), run_name="__main__")
