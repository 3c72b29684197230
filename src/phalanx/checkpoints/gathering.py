"""Gathering of all ranks' tensors on those that write them, over the ranks' own messages.

Full tensors are assembled window by window, such as all tensors of a file, on one rank or on many
at once. Rank 0 decides which rank sends what, so that no other needs to know the parts of all. A
rank that assembles needs memory for its window, the others for a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.checkpoints.tensor_file import Spec, in_windows, raw
from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group

MESSAGE_BYTES = 64 << 20
"""Bytes of a message, and of the memory of one on its way."""
_MAX_NAMED = 8

T = TypeVar("T")
Bytes = NDArray[np.uint8]
Split = Callable[[Mapping[str, Spec]], Sequence[Sequence[str]]]
"""Returns the tensors of each window."""


class LocalBox(NamedTuple):
    """A rank's shard of a tensor."""

    code: str
    shape: tuple[int, ...]
    """Shape of the full tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class RankBoxes(NamedTuple):
    """A rank's shards, as rank 0 is told of them."""

    specs: bytes
    """JSON: type and shape of each full tensor, by name."""
    starts: NDArray[np.int64]
    """Number of each shard's first element within the tensor, (tensors,)."""
    counts: NDArray[np.int64]
    """Elements of each shard, (tensors,)."""

    @classmethod
    def of(cls, local: Mapping[str, LocalBox]) -> RankBoxes:
        specs = {name: (box.code, box.shape) for name, box in local.items()}
        starts = [
            sum(o * int(np.prod(box.shape[dim + 1 :])) for dim, o in enumerate(box.offsets))
            for box in local.values()
        ]
        counts = [int(np.prod(box.sizes)) for box in local.values()]
        return cls(
            msgspec.json.encode(specs), np.array(starts, np.int64), np.array(counts, np.int64)
        )


class Senders(NamedTuple):
    """Ranks that send the shards, of equal ones the first."""

    specs: dict[str, Spec]
    are_sent: list[bytes]
    """Packed bits of each rank: whether it sends each of its shards."""
    num_bytes: NDArray[np.int64]
    """Bytes that each rank sends for each window, (ranks, windows)."""


class GatherLayout(NamedTuple):
    """Shards that a rank sends, and how much comes from others."""

    specs: Mapping[str, Spec]
    """Specs of full tensors."""
    windows: Sequence[Sequence[str]]
    """Names of the tensors of each window, the same on every rank."""
    sent: Mapping[str, LocalBox]
    """Shards that this rank sends."""
    num_bytes: NDArray[np.int64]
    """Bytes that each rank sends for each window, (ranks, windows)."""


def gather_objects(group: Group | None, value: T) -> Iterable[T]:
    """Return every rank's `value` on rank 0, as `Group.gather_objects`."""
    return [value] if group is None else group.gather_objects(value)


def make_gather_layout(
    group: Group | None, local: Mapping[str, LocalBox], split: Split
) -> GatherLayout:
    """Decide on rank 0 which rank sends each shard. Collective: p - 1 messages to rank 0, and a
    broadcast.

    Raises: RuntimeError, on every rank, when the shards do not make up the tensors.
    """
    rows = iter(gather_objects(group, RankBoxes.of(local)))
    found: Senders | str = ""
    if group is None or group.rank == 0:
        try:
            found = choose_senders(rows, split)
        except RuntimeError as error:
            found = str(error)
            list(rows)  # the others wait until theirs are taken
    found = found if group is None else group.share(found)
    if isinstance(found, str):
        raise RuntimeError(found)
    bits = np.frombuffer(found.are_sent[0 if group is None else group.rank], np.uint8)
    are_sent = np.unpackbits(bits, count=len(local)).astype(bool)
    sent = {
        name: box for (name, box), is_sent in zip(local.items(), are_sent, strict=True) if is_sent
    }
    return GatherLayout(found.specs, split(found.specs), sent, found.num_bytes)


def choose_senders(rows: Iterable[RankBoxes], split: Split) -> Senders:
    """Choose the rank that sends each shard. rows: of the ranks, in their order. Pure.

    Cost: some 100 bytes of memory a shard.
    Raises: RuntimeError when the shards do not make up the tensors.
    """
    specs, tensor_of, starts, counts = dict[str, Spec](), [], [], []
    known: dict[bytes, NDArray[np.int64]] = {}  # most ranks have the same tensors
    for rank, row in enumerate(rows):
        if row.specs not in known:
            known[row.specs] = _numbers(row.specs, specs, rank)
        tensor_of.append(known[row.specs])
        starts.append(row.starts)
        counts.append(row.counts)
    lengths = [len(one) for one in counts]
    ranks = np.repeat(np.arange(len(counts)), lengths)
    tensor, start, count = map(np.concatenate, (tensor_of, starts, counts))
    elements = np.array([spec.num_elements for spec in specs.values()], np.int64)
    first_element = np.cumsum(elements) - elements
    held = np.flatnonzero(count)
    _, first = np.unique((first_element[tensor] + start)[held], return_index=True)
    is_sent = np.zeros(len(count), bool)
    is_sent[held[first]] = True
    bits = [np.packbits(own).tobytes() for own in np.split(is_sent, np.cumsum(lengths)[:-1])]
    ranks, tensor, count = ranks[is_sent], tensor[is_sent], count[is_sent]
    sums = np.zeros(len(specs), np.int64)
    np.add.at(sums, tensor, count)
    for number in np.flatnonzero(sums != elements):
        of_it = tensor == number
        raise RuntimeError(_incomplete(*list(specs.items())[number], ranks[of_it], count[of_it]))
    windows = split(specs)
    window_of = {name: number for number, names in enumerate(windows) for name in names}
    window = np.array([window_of[name] for name in specs], np.int64)
    words = np.array([1 + 2 * len(spec.shape) for spec in specs.values()], np.int64)
    itemsize = np.array([spec.dtype.itemsize for spec in specs.values()], np.int64)
    num_bytes = np.zeros((len(lengths), len(windows)), np.int64)
    np.add.at(num_bytes, (ranks, window[tensor]), 8 * words[tensor] + itemsize[tensor] * count)
    return Senders(specs, bits, num_bytes)


def _numbers(text: bytes, specs: dict[str, Spec], rank: int) -> NDArray[np.int64]:
    """Return the numbers of a rank's tensors in `specs`, to which those that it lacks are added.

    text: as of `RankBoxes`. Raises: RuntimeError where a tensor is another one there.
    """
    table = msgspec.json.decode(text, type=dict[str, tuple[str, tuple[int, ...]]])
    for name, spec in table.items():
        if specs.setdefault(name, Spec(*spec)) != Spec(*spec):
            raise RuntimeError(f"{name} is {specs[name]} on one rank, and {Spec(*spec)} on {rank}")
    numbers = {name: number for number, name in enumerate(specs)}
    return np.array([numbers[name] for name in table], np.int64)


def _incomplete(name: str, spec: Spec, ranks: Sequence[int], counts: Sequence[int]) -> str:
    """Return in words who sends how many elements of a tensor that these do not make up."""
    sent = [f"{n} of rank {rank}" for rank, n in zip(ranks, counts, strict=True)]
    more = [f"{len(sent) - _MAX_NAMED} more"] if len(sent) > _MAX_NAMED else []
    listed = ", ".join([*sent[:_MAX_NAMED], *more]) or "none"
    return f"the elements of {name} on the ranks ({listed}) do not add up to {list(spec.shape)}"


def assemble(
    group: Group | None,
    layout: GatherLayout,
    window_of: Mapping[int, int],
    local: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return the full tensors of the window that this rank assembles, if any, and send its shards
    of the windows of others. Collective.

    window_of: by rank, those that assemble one. local: this rank's shards, contiguous.
    Cost: a message for each rank that holds something of a window, of `MESSAGE_BYTES` at most.
    """
    rank, size = (0, 1) if group is None else (group.rank, group.size)
    full: dict[str, Tensor] = {}
    if rank in window_of:
        full = {n: _begin(layout, n, local.get(n)) for n in layout.windows[window_of[rank]]}
    for distance in range(1, size):
        dest, source = (rank + distance) % size, (rank - distance) % size
        outgoing: Iterator[Bytes] = iter(())
        if dest in window_of and (total := int(layout.num_bytes[rank, window_of[dest]])):
            outgoing = packed(_shards(layout, window_of[dest], local), total)
        incoming = int(layout.num_bytes[source, window_of[rank]]) if rank in window_of else 0
        assert group is not None
        messages = _transfer(group, outgoing, dest, incoming, source)
        if incoming:
            _unpack(Stream(messages), incoming, full)
        for _ in messages:
            pass
    return full


def _begin(layout: GatherLayout, name: str, own: Tensor | None) -> Tensor:
    """Return a full tensor with this rank's shard of it: that itself, where it is all."""
    spec, box = layout.specs[name], layout.sent.get(name)
    if box is not None and own is not None and box.sizes == spec.shape:
        return own
    full = _empty(spec.shape, spec.dtype)
    if box is not None and own is not None:
        full[_slices(box.offsets, box.sizes)] = own.cpu()
    return full


def _shards(layout: GatherLayout, window: int, local: Mapping[str, Tensor]) -> Iterator[Bytes]:
    """Yield the place and the values of each shard of a window that this rank sends."""
    for number, name in enumerate(layout.windows[window]):
        if name in layout.sent:
            box = layout.sent[name]
            yield np.array([number, *box.offsets, *box.sizes], np.int64).view(np.uint8)
            yield _bytes(local[name])


def _unpack(stream: Stream, num_bytes: int, full: dict[str, Tensor]) -> None:
    """Put the shards of a stream, as of `_shards`, into full tensors."""
    names = list(full)
    while stream.num_read < num_bytes:
        number = np.empty(1, np.int64)
        stream.fill(number.view(np.uint8))
        tensor = full[names[number[0]]]
        place = np.empty(2 * tensor.dim(), np.int64)
        stream.fill(place.view(np.uint8))
        offsets, sizes = place[: tensor.dim()].tolist(), place[tensor.dim() :].tolist()
        target = tensor[_slices(offsets, sizes)]
        values = target if target.is_contiguous() else _empty(sizes, tensor.dtype)
        stream.fill(raw(values).numpy())
        if values is not target:
            target.copy_(values)


def _slices(offsets: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))


def packed(arrays: Iterable[Bytes], num_bytes: int) -> Iterator[Bytes]:
    """Yield arrays of `num_bytes` together as messages, each in the memory of the one before."""
    memory, filled = np.empty(min(num_bytes, MESSAGE_BYTES), np.uint8), 0
    for array in arrays:
        start = 0
        while start < len(array):
            size = min(len(array) - start, len(memory) - filled)
            memory[filled : filled + size] = array[start : start + size]
            start, filled = start + size, filled + size
            if filled == len(memory):
                yield memory
                filled = 0
    if filled:
        yield memory[:filled]


def _transfer(
    group: Group, outgoing: Iterable[Bytes], dest: int, num_bytes: int, source: int
) -> Iterator[Bytes]:
    """Send messages to one rank while those come that another sends, of `num_bytes` together, and
    yield these."""
    incoming = [
        min(MESSAGE_BYTES, num_bytes - start) for start in range(0, num_bytes, MESSAGE_BYTES)
    ]
    for sent, size in zip_longest(outgoing, incoming):
        received = np.empty(size or 0, np.uint8)
        requests = []
        if size:
            requests.append(group.receive(Buffer.of(received), source=source))
        if sent is not None:
            requests.append(group.send(Buffer.of(sent), dest=dest))
        for request in requests:
            request.wait()
        if size:
            yield received


class Stream:
    """Bytes that arrive as messages."""

    def __init__(self, messages: Iterator[Bytes]) -> None:
        self._messages, self._rest, self.num_read = messages, np.empty(0, np.uint8), 0

    def fill(self, memory: Bytes) -> None:
        """Fill `memory` with what comes next."""
        start = 0
        while start < len(memory):
            if not len(self._rest):
                self._rest = next(self._messages)
            size = min(len(memory) - start, len(self._rest))
            memory[start : start + size], self._rest = self._rest[:size], self._rest[size:]
            start += size
        self.num_read += start


def send_tensors(
    group: Group, specs: Mapping[str, Spec], tensors: Iterable[Tensor], dest: int = 0
) -> None:
    """Send tensors, in the order of `specs`, to a rank that receives them by `receive_tensors`."""
    total = sum(spec.num_bytes for spec in specs.values())
    for _ in _transfer(group, packed(map(_bytes, tensors), total), dest, 0, 0):
        pass


def receive_tensors(group: Group, specs: Mapping[str, Spec], source: int) -> Iterator[Tensor]:
    """Yield tensors of another rank as they arrive."""
    total = sum(spec.num_bytes for spec in specs.values())
    stream = Stream(_transfer(group, (), 0, total, source))
    for spec in specs.values():
        tensor = _empty(spec.shape, spec.dtype)
        stream.fill(raw(tensor).numpy())
        yield tensor


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")  # whatever the default is


def _bytes(tensor: Tensor) -> Bytes:
    """Return the memory of a contiguous tensor, or of a copy in the host's memory."""
    found: Bytes = raw(tensor.cpu()).numpy()
    return found


def gathered_by_name(
    group: Group | None, own: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield on rank 0, by name, the tensors of all ranks, each whole on one of them or more;
    elsewhere send, and yield nothing. Collective."""
    boxes = {
        name: LocalBox(Spec.of(one).code, tuple(one.shape), (0,) * one.dim(), tuple(one.shape))
        for name, one in own.items()
    }
    layout = make_gather_layout(group, boxes, lambda specs: in_windows(specs, sorted(specs)))
    held = {name: tensor.detach().contiguous() for name, tensor in own.items()}
    for window in range(len(layout.windows)):
        yield from assemble(group, layout, {0: window}, held).items()
