"""Tensors on their way to the ranks that write them; without MPI, and with many ranks."""

import tracemalloc
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from phalanx.checkpoints import gathering
from phalanx.checkpoints.gathering import (
    MESSAGE_BYTES,
    LocalBox,
    RankBoxes,
    assemble,
    choose_senders,
    gathered_by_name,
    make_gather_layout,
    packed,
    receive_tensors,
    send_tensors,
)
from phalanx.checkpoints.sharded import writers_of
from phalanx.checkpoints.tensor_file import FILE_BYTES, Spec, in_file_order, in_windows
from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group


class OnDevice(Tensor):
    """Stand-in for a tensor in memory that the host cannot read."""

    def numpy(self, *_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self, *_: Any) -> Tensor:
        return self.as_subclass(Tensor).clone()


class Done:
    """Request of a message that was sent."""

    def wait(self) -> None:
        pass


class Awaited:
    """Request of a message that may still have to come."""

    def __init__(self, buffer: Buffer, letters: SimpleQueue[bytes]) -> None:
        self._buffer, self._letters = buffer, letters

    def wait(self) -> None:
        content = self._letters.get(timeout=60)
        assert len(content) == self._buffer.num_bytes
        self._buffer.bytes()[:] = np.frombuffer(content, np.uint8)


class Ranks:
    """Letters between the ranks of a job, and how many each has received."""

    def __init__(self) -> None:
        self.letters = defaultdict[tuple[int, int], SimpleQueue[bytes]](SimpleQueue)
        self.shared = defaultdict[int, SimpleQueue[Any]](SimpleQueue)
        self.received = Counter[int]()
        self.largest = 0


class OneOfThem:
    """A rank of a group."""

    def __init__(self, rank: int, size: int, ranks: Ranks) -> None:
        self.rank, self.size, self._ranks = rank, size, ranks

    def send(self, buffer: Buffer, dest: int) -> Done:
        content = buffer.bytes().tobytes()
        self._ranks.largest = max(self._ranks.largest, len(content))
        self._ranks.letters[self.rank, dest].put(content)
        return Done()

    def receive(self, buffer: Buffer, source: int) -> Awaited:
        self._ranks.received[self.rank] += 1
        return Awaited(buffer, self._ranks.letters[source, self.rank])

    gather_objects, _receive_object = Group.gather_objects, Group._receive_object

    def share(self, value: Any) -> Any:
        if self.rank == 0:
            for peer in range(1, self.size):
                self._ranks.shared[peer].put(value)
            return value
        return self._ranks.shared[self.rank].get(timeout=60)


def together(size: int, act: Any) -> tuple[list[Any], Ranks]:
    """Return what each rank makes of its group, a thread each."""
    ranks = Ranks()
    groups = [OneOfThem(rank, size, ranks) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(act, groups)), ranks


def cut(tensor: Tensor, rank: int, size: int, dim: int | None) -> tuple[LocalBox, Tensor]:
    """Return a rank's shard along a dim; None: all have all."""
    offsets, sizes = [0] * tensor.dim(), list(tensor.shape)
    if dim is not None:
        width = -(-tensor.shape[dim] // size)
        offsets[dim] = min(rank * width, tensor.shape[dim])
        sizes[dim] = min(width, tensor.shape[dim] - offsets[dim])
    place = tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))
    code = Spec.of(tensor).code
    box = LocalBox(code, tuple(tensor.shape), tuple(offsets), tuple(sizes))
    return box, tensor[place].contiguous()


def windows_of(specs: Any) -> list[list[str]]:
    return in_windows(specs, in_file_order(specs))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("num_writers", [1, 4])
def test_full_tensors_are_assembled_on_many_ranks(
    size: int, num_writers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MESSAGE_BYTES", 100)
    monkeypatch.setattr("phalanx.checkpoints.tensor_file.FILE_BYTES", 1500)
    torch.manual_seed(0)
    tensors = {
        "rows": torch.randn(67, 5),
        "columns": torch.randn(6, 70),
        "all": torch.randn(31),
        "half": torch.randn(9, 70).half(),
        "pairs": torch.randn(8, 2, dtype=torch.complex64),
        "step": torch.tensor(3.0),
        "none": torch.zeros(0, 4),
        "yes": torch.rand(65) > 0.5,
    }
    dims = {"rows": 0, "columns": 1, "half": 1, "pairs": 0, "yes": 0}

    def act(group: Any) -> list[tuple[int, dict[str, Tensor]]]:
        parts = {n: cut(t, group.rank, size, dims.get(n)) for n, t in tensors.items()}
        layout = make_gather_layout(group, {n: box for n, (box, _) in parts.items()}, windows_of)
        local = {n: part for n, (_, part) in parts.items()}
        writers = writers_of(len(layout.windows), min(num_writers, size), size)
        found = []
        for first in range(0, len(layout.windows), len(writers)):
            windows = dict(zip(writers, range(first, len(layout.windows)), strict=False))
            found.append((len(layout.windows), assemble(group, layout, windows, local)))
        return found

    found, ranks = together(size, act)
    assert found[0][0][0] > 2
    made = [full for each in found for _, full in each]
    names = [name for full in made for name in full]
    assert sorted(names) == sorted(tensors), "each once"
    for full in made:
        for name, tensor in full.items():
            assert tensor.dtype == tensors[name].dtype
            assert tensor.shape == tensors[name].shape
            assert tensor.equal(tensors[name]), name
    assert ranks.largest <= max(100, 2000), "messages of tensors are bounded; descriptions are not"


def test_what_lies_on_a_device_is_sent_from_the_host() -> None:
    """It was sent from where it lay: an error on this rank, and rank 0 waited for the message."""
    tensor = torch.arange(6.0).reshape(2, 3)

    def act(group: Any) -> list[Tensor]:
        specs = {"weight": Spec.of(tensor)}
        if group.rank:
            send_tensors(group, specs, [tensor.as_subclass(OnDevice)])
            return []
        return list(receive_tensors(group, specs, 1))

    found, _ = together(2, act)
    assert found[0][0].equal(tensor)


def test_what_does_not_make_up_a_tensor_is_refused_on_every_rank() -> None:
    def act(group: Any) -> str:
        box = LocalBox("F32", (4, 2), (group.rank, 0), (1, 2))
        with pytest.raises(RuntimeError) as raised:
            make_gather_layout(group, {"weight": box}, windows_of)
        return str(raised.value)

    found, _ = together(3, act)
    held = "2 of rank 0, 2 of rank 1, 2 of rank 2"
    text = f"the elements of weight on the ranks ({held}) do not add up to [4, 2]"
    assert found == [text] * 3


def test_tensors_of_another_type_on_some_ranks_are_refused() -> None:
    rows = [RankBoxes.of({"a": LocalBox(code, (2,), (0,), (2,))}) for code in ("F32", "F16")]
    with pytest.raises(RuntimeError, match=r"a is .*F32.* on one rank, and .*F16.* on 1"):
        choose_senders(rows, windows_of)


def test_ranks_after_one_that_differs_are_told_as_well() -> None:
    """Rank 0 stops at the first that differs, and the others' descriptions must not be left."""

    def act(group: Any) -> str:
        code = "F16" if group.rank == 1 else "F32"
        with pytest.raises(RuntimeError) as raised:
            make_gather_layout(group, {"a": LocalBox(code, (2,), (0,), (2,))}, windows_of)
        return str(raised.value)

    found, ranks = together(4, act)
    assert len(set(found)) == 1
    assert ranks.received[0] == 6, "two messages of each"


def test_tensors_come_by_name_whoever_holds_them() -> None:
    values = {f"w{number}": torch.full((number,), float(number)) for number in range(1, 6)}

    def act(group: Any) -> list[tuple[str, Tensor]]:
        own = {n: t for place, (n, t) in enumerate(values.items()) if place % 3 >= group.rank}
        return list(gathered_by_name(group, own))

    found, _ = together(3, act)
    assert [name for name, _ in found[0]] == sorted(values)
    assert all(tensor.equal(values[name]) for name, tensor in found[0])
    assert found[1:] == [[], []]


@pytest.mark.parametrize("lengths", [[], [0], [7], [3, 0, 9, 1], [25]])
def test_messages_are_of_one_size_but_for_the_last(
    lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MESSAGE_BYTES", 4)
    arrays = [np.arange(length, dtype=np.uint8) for length in lengths]
    messages = [message.copy() for message in packed(arrays, sum(lengths))]
    assert b"".join(m.tobytes() for m in messages) == b"".join(a.tobytes() for a in arrays)
    assert [len(message) for message in messages[:-1]] == [4] * (len(messages) - 1)


def rows_of(size: int, num_tensors: int, columns: int) -> list[RankBoxes]:
    """Return the shards of parameters of 16,384 rows, which `size` ranks divide, and of Adam's two
    moments."""
    shape = (16_384, columns)
    local = {
        f"layers.{number}.weight{quantity}": LocalBox("F32", shape, (0, 0), (1, columns))
        for number in range(num_tensors)
        for quantity in ("", ":exp_avg", ":exp_avg_sq")
    }
    first = RankBoxes.of(local)
    num_rows = 16_384 // size
    counts = np.full(len(local), num_rows * columns)
    return [first._replace(starts=counts * rank, counts=counts) for rank in range(size)]


@pytest.mark.parametrize(
    ("size", "num_tensors", "columns"), [(64, 300, 1424), (1024, 300, 1424), (16_384, 40, 10_680)]
)
def test_a_checkpoint_of_84_gb_comes_in_few_messages(
    size: int, num_tensors: int, columns: int
) -> None:
    """Rank 0 received each shard of each tensor by itself: 921,600 at 1,024 ranks."""
    rows = rows_of(size, num_tensors, columns)
    num_shards = size * 3 * num_tensors
    tracemalloc.start()
    found = choose_senders(rows, windows_of)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * num_shards + 10e6, "beside what ranks have sent"
    total = sum(spec.num_bytes for spec in found.specs.values())
    assert total > 80e9
    num_files = found.num_bytes.shape[1]
    assert num_files <= 2 * total / FILE_BYTES
    messages = -(-found.num_bytes // MESSAGE_BYTES)
    if size <= 1024:  # rank 0 alone writes: one of each rank for a file
        assert messages[1:].sum() <= num_files * size < num_shards / 5
    writers = writers_of(num_files, size, size)
    assert writers[0] == 0
    assert len(set(writers)) == len(writers) == min(num_files, size)
    of_files = messages.sum(0)  # what a rank that writes receives, its own among them
    waves = -(-num_files // len(writers))
    assert of_files.max() * waves <= 2 * waves * size
    # It has its file in memory, and a message each way.
    largest = max(sum(found.specs[n].num_bytes for n in names) for names in windows_of(found.specs))
    assert largest <= FILE_BYTES


@pytest.mark.parametrize(
    ("num_files", "most", "size", "ranks"),
    [
        (1, 8, 8, [0]),
        (5, 1, 8, [0]),
        (4, 8, 8, [0, 2, 4, 6]),
        (9, 4, 4, [0, 1, 2, 3]),
        (3, 1024, 1024, [0, 341, 682]),
    ],
)
def test_ranks_that_write_are_far_from_each_other(
    num_files: int, most: int, size: int, ranks: list[int]
) -> None:
    assert writers_of(num_files, most, size) == ranks
