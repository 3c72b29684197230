"""Certificate of a bitwise run: the hash of what it has made, the same on all ranks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from phalanx.checkpoints.checkpoint import (
    model_tensors,
    state_sha256,
    stored_name,
    tensors_sha256,
)
from phalanx.checkpoints.gathering import gathered_by_name
from phalanx.comm.shared_folder import gather_text
from phalanx.errors import UserError
from phalanx.parallel.strategy import Strategy
from phalanx.records.environment import processor_name
from phalanx.records.events import Certificate, certificate_text
from phalanx.run.digests import digest_of

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
        f"bitwise: {ranks} ended with other bits than the rest, {where}: a fault of memory, or "
        "something that the program has done on some ranks alone; the run has no certificate"
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
        f"bitwise: rank {different} ({other}) and rank 0 ({first}) compute on different "
        f"processors, whose bits {probed} in a probe: the result may depend on which rank computes "
        "what; take processors of one kind, or set ATEN_CPU_CAPABILITY to what all have"
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
