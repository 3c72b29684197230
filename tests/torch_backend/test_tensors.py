"""Where tensors lie, what the engine calls them, and how GPU tensors travel; without MPI.

There is no GPU here: their ways are gone by CPU tensors, with streams that only keep a diary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.comm.device_transport import DeviceOps
from phalanx.comm.dtypes import ReduceOp, dtype_of
from phalanx.torch_backend.gpu_staging import (
    DirectDeviceStaging,
    PinnedHostStaging,
    device_types,
    is_direct,
    is_staged,
)
from phalanx.torch_backend.reduce_ops import get_reduction, premul_factor
from phalanx.torch_backend.tensors import TensorStaging, buffer_of, is_plain


def test_dtypes() -> None:
    assert dtype_of(torch.bfloat16).is_half
    assert dtype_of(torch.uint16).name == "uint16"
    moved = dtype_of(torch.float8_e4m3fn)
    assert (moved.kind, moved.itemsize) == ("opaque", 1)
    assert dtype_of(torch.float8_e5m2) != moved
    assert dtype_of(torch.int64) is dtype_of(np.dtype("int64"))
    assert dtype_of(np.dtype(">f4")).kind == "opaque", "of another byte order: moved, not summed"
    with pytest.raises(TypeError, match="object has Python objects as elements"):
        dtype_of(np.dtype(object))


def test_plain_tensors_are_used_where_they_lie() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    buffer = TensorStaging().buffer(tensor)
    assert (buffer.address, buffer.count, buffer.owner) == (tensor.data_ptr(), 6, tensor)
    for other in (
        tensor.t(),
        tensor[:, :2],
        torch.complex(tensor, tensor).conj(),
        torch.complex(tensor, tensor).conj().imag,
    ):
        assert not is_plain(other)
    assert not is_plain(tensor.to_sparse())
    assert is_plain(torch.empty(0))


def test_copies_are_filled_before_and_brought_back_after() -> None:
    tensor, staging = torch.arange(6.0).reshape(2, 3).t(), TensorStaging()
    read, written = tensor.clone().t().contiguous().t(), torch.zeros(4, 2).t()
    of_read, of_written = staging.input(read), staging.output(written)
    seen: list[list[float]] = []

    def call() -> None:
        seen.append(of_read.array().tolist())
        of_written.array()[:] = range(8)

    staging.wrap([call])()
    assert seen == [read.contiguous().flatten().tolist()]
    assert torch.equal(written, torch.arange(8.0).reshape(2, 4))


def test_copies_are_made_on_the_host_wherever_new_tensors_are() -> None:
    tensor, staging = torch.arange(6.0).reshape(2, 3).t(), TensorStaging()
    with torch.device("meta"):  # as `torch.set_default_device("cuda")`
        buffer = staging.buffer(tensor)
        staging.wrap([lambda: buffer.array().__imul__(2)])()
    assert torch.equal(tensor, 2 * torch.arange(6.0).reshape(2, 3).t())


def test_a_leaf_that_requires_grad_can_be_written() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, 2).t())
    staging = TensorStaging()
    buffer = staging.output(parameter)

    def call() -> None:
        buffer.array()[:] = 1

    staging.wrap([call])()
    assert parameter.sum() == 6


def test_tensors_without_memory_are_refused() -> None:
    with pytest.raises(TypeError, match="has no memory"):
        buffer_of(torch.empty(3, device="meta"))
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3)
    with pytest.raises((TypeError, UserWarning)):  # PyTorch warns, too
        buffer_of(fake)


@pytest.mark.parametrize("name", ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"])
def test_operations_have_their_namesake(name: str) -> None:
    number = hash(dist.ReduceOp(getattr(dist.ReduceOp, name)))
    assert get_reduction(torch.int32, number) == (ReduceOp[name], False, False)


def scaled_by(factor: float) -> dist.ReduceOp:
    return dist._make_nccl_premul_sum(factor)


def test_operations_that_the_engine_does_not_have() -> None:
    average = get_reduction(torch.float32, hash(dist.ReduceOp(dist.ReduceOp.AVG)))
    assert average == (ReduceOp.SUM, True, False)
    scaled = scaled_by(0.5)
    assert get_reduction(torch.float32, hash(scaled)) == (ReduceOp.SUM, False, True)
    assert premul_factor(scaled) == 0.5


def test_a_sum_of_bool_is_a_logical_or() -> None:
    """It was refused. NCCL gives the logical or; Gloo adds bytes and leaves 2 or 3 in a bool."""
    total = get_reduction(torch.bool, hash(dist.ReduceOp(dist.ReduceOp.SUM)))
    assert total == (ReduceOp.BOR, False, False)
    for op, name in ((dist.ReduceOp(dist.ReduceOp.AVG), "AVG"), (scaled_by(0.5), "PREMUL_SUM")):
        with pytest.raises(TypeError, match=f"bool has no reduction {name}; use SUM"):
            get_reduction(torch.bool, hash(op))


class Diary:
    """Streams and events that write down what is asked of them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._current = "current"

    def current_stream(self, _: torch.device) -> "_Stream":
        return _Stream(self, self._current)

    def Stream(self, _: torch.device) -> "_Stream":  # noqa: N802
        return _Stream(self, "side")

    @contextmanager
    def stream(self, stream: "_Stream") -> Iterator[None]:
        self.lines.append(f"on {stream.name}")
        before, self._current = self._current, stream.name
        yield
        self._current = before


class _Stream:
    def __init__(self, diary: Diary, name: str) -> None:
        self._diary, self.name = diary, name

    def record_event(self) -> "_Event":
        self._diary.lines.append(f"{self.name} records")
        return _Event(self._diary, self.name)

    def wait_event(self, event: "_Event") -> None:
        self._diary.lines.append(f"{self.name} waits for {event.stream}")


class _Event:
    def __init__(self, diary: Diary, stream: str) -> None:
        self._diary, self.stream = diary, stream

    def synchronize(self) -> None:
        self._diary.lines.append(f"the thread waits for {self.stream}")


class Unpinned(PinnedHostStaging):
    def _allocate_copy(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype)


def test_staging_is_in_the_order_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    diary = Diary()
    tensor = torch.arange(4.0)
    staging = Unpinned(torch.device("cpu"), diary)
    buffer = staging.buffer(tensor)
    assert buffer.address != tensor.data_ptr()

    def call() -> None:
        diary.lines.append("collective")
        buffer.array()[:] *= 2

    staging.wrap([call])()
    staging.sync_stream()
    assert tensor.tolist() == [0, 2, 4, 6]
    assert diary.lines == [
        "current records",  # what the tensor waits for
        *("on side", "side waits for current", "side records", "the thread waits for side"),
        "collective",
        *("on side", "side waits for current", "side records"),
        "current waits for side",
    ]


def test_a_part_is_loaded_while_the_one_before_it_is_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In three places, each filled again when what it held has been stored."""
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    diary, tensor = Diary(), torch.arange(10.0)
    staging = Unpinned(torch.device("cpu"), diary)
    ranges = [range(2 * n, 2 * n + 2) for n in range(5)]
    buffers = staging.in_parts(tensor, ranges, True, True, 10.0)
    assert len({buffer.address for buffer in buffers}) == 3

    def call(number: int) -> None:
        diary.lines.append(f"collective {number}")
        buffers[number].array()[:] += 1

    staging.wrap([partial(call, number) for number in range(5)])()
    staging.sync_stream()
    assert tensor.tolist() == [10 * n + 1 for n in range(10)]
    copy = ["on side", "side waits for current", "side records"]
    loaded = stored = "the thread waits for side"
    assert diary.lines == [
        "current records",
        *(*copy, *copy, loaded, "collective 0", *copy),
        *(*copy, loaded, "collective 1", *copy),
        *(stored, *copy, loaded, "collective 2", *copy),
        *(stored, *copy, loaded, "collective 3", *copy),
        *(loaded, "collective 4", *copy),
        "current waits for side",
    ]


@pytest.mark.parametrize("kind", [TensorStaging, Unpinned])
def test_what_is_not_contiguous_is_copied_whole(
    kind: type[TensorStaging], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    tensor = torch.arange(6.0).reshape(2, 3).t()
    staging = kind() if kind is TensorStaging else Unpinned(torch.device("cpu"), Diary())
    first, second = staging.in_parts(tensor, [range(2), range(2, 6)], True, True, None)
    calls = [lambda: first.array().__imul__(2), lambda: second.array().__imul__(3)]
    staging.wrap(calls)()
    assert tensor.flatten().tolist() == [0, 6, 3, 12, 6, 15]


def test_a_gpu_aware_mpi_gets_the_tensors_in_the_order_of_the_stream() -> None:
    diary = Diary()

    @contextmanager
    def on_device(memory: DeviceOps) -> Iterator[None]:
        diary.lines.append("the group works on the device")
        yield
        memory.finish()

    tensor, strided = torch.arange(4.0), torch.arange(6.0).reshape(2, 3).t()
    staging = DirectDeviceStaging(torch.device("cpu"), on_device, diary)
    buffer, of_copy = staging.buffer(tensor), staging.buffer(strided)
    assert buffer.address == tensor.data_ptr()
    assert of_copy.address != strided.data_ptr()

    def call() -> None:
        diary.lines.append("collective")
        buffer.array()[:] *= 2
        of_copy.array()[:] *= 2

    run = staging.wrap([call])
    diary.lines.append("later, on another thread")
    run()
    staging.sync_stream()
    assert tensor.tolist() == [0, 2, 4, 6]
    assert torch.equal(strided, 2 * torch.arange(6.0).reshape(2, 3).t())
    assert diary.lines == [
        "on side",  # a copy is made there
        "current records",
        "later, on another thread",
        *("on side", "side waits for current"),
        *("the group works on the device", "collective"),
        *("side records", "the thread waits for side"),
        *("side records", "the thread waits for side"),  # after copies were brought back
    ]


@pytest.mark.parametrize(
    ("dtype", "reduces", "aware", "direct"),
    [
        (torch.float32, True, True, True),
        (torch.bfloat16, True, True, True),
        (torch.float32, True, False, False),
        (torch.float32, False, False, False),
        (torch.uint32, True, True, False),
        (torch.uint32, False, True, True),
        (torch.float8_e5m2, False, True, True),
    ],
)
def test_what_is_given_to_mpi_as_it_is(
    dtype: torch.dtype, reduces: bool, aware: bool, direct: bool
) -> None:
    assert is_direct(dtype, reduces=reduces, is_gpu_aware=aware) is direct


def test_which_devices_are_served() -> None:
    kinds = device_types()
    assert kinds[0] == "cpu"
    devices = [torch.device("cpu"), torch.device("cuda")]
    assert is_staged("cuda", devices)
    assert not is_staged("cpu", devices)
    assert not is_staged("meta", devices)
