"""Certificate of a bitwise run: the hash of what it has made, the same on all ranks; and digests of
a model after every step, at the speed of memory, to find where two runs part."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from phalanx.checkpoints.checkpoint import (
    bytes_of,
    model_tensors,
    state_sha256,
    stored_name,
    tensors_sha256,
)
from phalanx.checkpoints.gathering import gathered_by_name
from phalanx.comm.shared_folder import gather_text
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy
from phalanx.records.environment import processor_name
from phalanx.records.events import Certificate, DigestEvent, DigestNamesEvent, certificate_text
from phalanx.records.files import EventWriter

MAX_COMPARED = 2**20
"""Characters of tensors' digests that a rank sends where hashes differ."""


def certify(strategy: Strategy, steps: int) -> Certificate | None:
    """Return the certificate of a bitwise run, None of any other; rank 0 prints it. Collective.

    steps: updates made. Cost: parameters, buffers and state are hashed once.
    Raises: UserError, on every rank, that names the ranks that hold other bits than the rest.
    """
    if strategy.num_blocks is None:
        return None
    is_alone = strategy.size == 1 and not strategy.group.lost
    certificate = Certificate(
        sha256=_checked_sha256(strategy),
        steps=steps,
        micro_batches=strategy.num_blocks,
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        torch_build=torch_build(),
        instruction_set=torch.backends.cpu.get_cpu_capability(),
        strategy="sequential" if is_alone else strategy.name,
    )
    if strategy.rank == 0:
        print(certificate_text(certificate), flush=True)
    return certificate


def _checked_sha256(strategy: Strategy) -> str:
    """Return the hash of the model and the whole of its optimizer's state. Collective.

    What every rank holds is compared; of what is divided, rank 0 hashes one tensor after the
    other as it comes from its owner.
    Raises: UserError as `certify`.
    """
    if not strategy.is_sharded:
        sha256 = state_sha256(strategy.model, strategy.optimizer)
        _check_alike(strategy, sha256)
        return sha256
    tensors = model_tensors(strategy.model)
    if strategy.tensor_names is None:
        _check_alike(strategy, tensors_sha256(sorted(tensors.items())))
    return strategy.group.together(lambda: _sha256_of_parts(strategy, tensors))


def _sha256_of_parts(strategy: Strategy, tensors: Mapping[str, Tensor]) -> str:
    """Return the hash of the model and state that ranks hold in parts. Collective.

    tensors: of the model, those that this rank holds.
    """
    own = {
        f"{stored_name(name)}:{quantity}": value
        for name, state in strategy.optimizer_state().items()
        for quantity, value in state.items()
        if isinstance(value, Tensor)
    }
    group = strategy.group
    with group.uncounted():
        sha256 = tensors_sha256(gathered_by_name(group.checkpoint_group(), {**tensors, **own}))
        return group.share(sha256)


def torch_build() -> str:
    """Return a hash of how this PyTorch was built, whatever processor it runs on."""
    lines = torch.__config__.show().splitlines()
    text = "\n".join(line for line in lines if "CPU capability" not in line)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_alike(strategy: Strategy, sha256: str) -> None:
    """Raise UserError where ranks hold other bits. Collective."""
    found = gather_text(strategy.group, sha256)
    odd = odd_ones(found)
    if not odd:
        return
    tensors = model_tensors(strategy.model)
    text = "".join(f"{digest_of(tensor):016x}" for tensor in tensors.values())
    others = gather_text(strategy.group, text[:MAX_COMPARED])
    truth = others[next(rank for rank in range(len(found)) if rank not in odd)]
    differing = [
        name
        for number, name in enumerate(tensors)
        if others[odd[0]][16 * number : 16 * number + 16] != truth[16 * number : 16 * number + 16]
    ]
    where = f"in {differing[0]} first" if differing else "in the optimizer's state"
    ranks = f"rank{'s' * (len(odd) > 1)} {', '.join(map(str, odd))}"
    raise UserError(
        f"bitwise: {ranks} ended with bits that differ from the other ranks, {where}: a memory "
        "fault, or an action of the program on some ranks only; the run gets no certificate"
    )


def odd_ones(values: Sequence[str]) -> list[int]:
    """Return the places of values that are not the most frequent one; of two, the second's."""
    (usual, _), *_ = Counter(values).most_common()
    return [place for place, value in enumerate(values) if value != usual]


def probe_processors(strategy: Strategy) -> str:
    """Return a notice for the user where ranks of a bitwise run compute on processors of different
    kinds, else nothing. Collective; a millisecond."""
    if strategy.num_blocks is None or strategy.size == 1:
        return ""
    kind = f"{torch.backends.cpu.get_cpu_capability()}, {processor_name()}"
    found = [text.split("\n") for text in gather_text(strategy.group, f"{kind}\n{_probe()}")]
    different = next((rank for rank, one in enumerate(found) if one != found[0]), None)
    if different is None:
        return ""
    (first, bits), (other, other_bits) = found[0], found[different]
    probed = "differ" if other_bits != bits else "were the same"
    return (
        f"bitwise: rank {different} ({other}) and rank 0 ({first}) have different processors, "
        f"whose bits {probed} in a probe: the result may depend on which rank computes what; use "
        "processors of one kind, or set ATEN_CPU_CAPABILITY to what all support"
    )


def _whole_numbers(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float32, device="cpu")


def _probe() -> str:
    """Return a hash of some operations whose kernels differ among processors."""
    values = _whole_numbers(64 * 96).remainder(97).sub(48).div(31).view(64, 96)
    images = values.view(2, 3, 32, 32)
    weight = _whole_numbers(8 * 27).remainder(13).sub(6).div(7).view(8, 3, 3, 3)
    results: list[Tensor] = [
        values @ values.T,
        torch.nn.functional.conv2d(images, weight),
        values.exp().sum(1),
        values.softmax(1),
        values.tanh(),
    ]
    digest = hashlib.sha256()
    for result in results:
        digest.update(result.contiguous().numpy().tobytes())
    return digest.hexdigest()


MAX_DIGESTS = 64
"""A step's; a model of more tensors has one for several, so that its records stay small."""
MASK, HALF_MASK = 2**64 - 1, 2**32 - 1


def digest_of(tensor: Tensor) -> int:
    """Return 64 bits that change with any single bit of the tensor: the sum of its words."""
    return sum_of_words(bytes_of(tensor))


def sum_of_words(values: NDArray[np.uint8]) -> int:
    """Return the sum of words of 8 bytes, the last filled up with zeros, modulo 2⁶⁴. values: (n,).

    Cost: one reading, at the speed of memory, and some 3 µs.
    """
    whole = len(values) // 8 * 8
    total = int(np.add.reduce(values[:whole].view(np.uint64)))
    if whole < len(values):
        total += int.from_bytes(values[whole:].tobytes(), "little")
    return total & MASK


class TensorBytes:
    """Bytes of a tensor that changes in place, found once: that takes longer than to sum few."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._place = tensor, (0, 0)
        self._bytes: NDArray[np.uint8] | None = None

    def read(self) -> NDArray[np.uint8]:
        """Return the bytes as they are now."""
        tensor = self._tensor
        place = tensor.data_ptr(), tensor.numel()
        if self._bytes is None or place != self._place:
            found = bytes_of(tensor)
            if not found.size or found.ctypes.data != place[0]:
                return found  # a copy
            self._bytes, self._place = found, place
        return self._bytes


@dataclass(frozen=True)
class DigestGroup:
    """Consecutive tensors of a model that share a digest."""

    name: str
    tensors: Sequence[tuple[int, TensorBytes]]
    """Tensors that this rank holds, with their numbers in the group."""


class ModelDigests:
    """Writes a line of digests after every step.

    Where ranks hold different tensors, each sums the words of its own, and rank 0 writes the sums
    of all: collective then.
    """

    def __init__(
        self,
        model: nn.Module,
        writer: EventWriter,
        *,
        at_s: float,
        names: Sequence[str] | None = None,
        group: RunGroup | None = None,
    ) -> None:
        """names: of the full model's tensors; None: the model has all. group: whose ranks hold
        different tensors; None: the model has all."""
        tensors = model_tensors(model)
        self._groups = group_tensors(list(tensors) if names is None else names, tensors)
        self._writer, self._group = writer, group
        digests = as_text(self.values())
        if group is None or group.rank == 0:
            names = [each.name for each in self._groups]
            writer.add(DigestNamesEvent(at_s=at_s, names=names, digests=digests))

    def add(self, step: int, at_s: float) -> None:
        """Note the digests after a step."""
        values = self.values()
        if self._group is None or self._group.rank == 0:
            self._writer.note((digest_record, at_s, step, values))

    def values(self) -> list[int]:
        """Return the digests of the model as it is."""
        own = [
            sum((2 * n + 1) * sum_of_words(tensor.read()) for n, tensor in group.tensors) & MASK
            for group in self._groups
        ]
        return own if self._group is None else sum_digests(self._group, own)


def sum_digests(group: RunGroup, own: Sequence[int]) -> list[int]:
    """Return the sums over the ranks, modulo 2⁶⁴. Collective."""
    halves = [float(half) for value in own for half in (value >> 32, value & HALF_MASK)]
    sums = list(map(int, group.sum(halves)))  # exact in float64
    return [((high << 32) + low) & MASK for high, low in zip(sums[::2], sums[1::2], strict=True)]


def digest_record(at_s: float, step: int, values: Sequence[int]) -> DigestEvent:
    """Return the event of a step's digests."""
    return DigestEvent(at_s=at_s, step=step, digests=as_text(values))


def as_text(values: Sequence[int]) -> str:
    """Return digests as 16 hexadecimal digits each."""
    return "".join(f"{value:016x}" for value in values)


def group_tensors(names: Sequence[str], held: Mapping[str, Tensor]) -> list[DigestGroup]:
    """Divide parameters and buffers into at most `MAX_DIGESTS` groups.

    names: of the full model's. held: those of this rank.
    """
    size = max(1, math.ceil(len(names) / MAX_DIGESTS))
    groups = [names[start : start + size] for start in range(0, len(names), size)]
    return [
        DigestGroup(
            own[0] if len(own) == 1 else f"{own[0]} … {own[-1]}",
            [(n, TensorBytes(held[name])) for n, name in enumerate(own) if name in held],
        )
        for own in groups
    ]
