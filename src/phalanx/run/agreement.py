"""Agreement of the ranks of a program, each of which runs code of its own."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from torch import nn

from phalanx.comm.shared_folder import RankOnHost, by_host, gather_text
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup

ABSENT = -1.0


def check_alike(group: RunGroup, model: nn.Module, arguments: Mapping[str, float | None]) -> None:
    """Compare this rank's model and arguments with rank 0's. Collective.

    arguments: numbers that decide updates, by name.
    Raises: UserError, on every rank, that names the first rank that differs, and in what.
    """
    if group.size == 1:
        return
    own = [(name, ABSENT if value is None else float(value)) for name, value in arguments.items()]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        kind = f"{str(tensor.dtype).removeprefix('torch.')}, {tuple(tensor.shape)}"
        frozen = "" if tensor.requires_grad else ", without gradient"
        own.append((f"{name} ({kind}{frozen})", float(tensor.numel())))
    lines = [f"{name}\t{value}" for name, value in own]
    first = group.share("\n".join(lines)).split("\n")
    number = _first_difference(lines, first)
    rows = group.gather([number, own[number][1] if 0 <= number < len(own) else ABSENT])
    text = "" if rows is None else _describe(rows, own, len(arguments))
    if text := group.share(text):
        raise UserError(text)


def check_same_pack(group: RunGroup, fingerprint: str) -> None:
    """Raise UserError, on every rank, where a rank reads another pack than rank 0. Collective.

    fingerprint: of this rank's; empty for other data.
    """
    texts = gather_text(group, f"{fingerprint} {socket.gethostname()}")
    packs, hosts = zip(*(text.split(" ", 1) for text in texts), strict=True)
    others = [RankOnHost(rank, hosts[rank]) for rank, pack in enumerate(packs) if pack != packs[0]]
    if others:
        raise UserError(
            f"data: {by_host(others)} has another pack at the same path than rank 0 ({hosts[0]}): "
            "copy one of them to all nodes, or name a folder that they share"
        )


def check_together(group: RunGroup, flag: bool, words: str) -> None:
    """Raise UserError, on every rank, when `flag` holds on some ranks alone. Collective.

    words: what these ranks do.
    """
    flags = [0.0] * group.size
    flags[group.rank] = float(flag)
    flags = group.sum(flags)
    if any(flags) and not all(flags):
        some = [str(rank) for rank, value in enumerate(flags) if value]
        who = f"rank {some[0]} alone" if len(some) == 1 else f"ranks {', '.join(some)} alone"
        raise UserError(f"{who} {words}: all ranks do, or none")


def _first_difference(lines: Sequence[str], first: Sequence[str]) -> int:
    """Return the number of the first line that differs; -1: none does."""
    for number, (own, other) in enumerate(zip(lines, first, strict=False)):
        if own != other:
            return number
    return -1 if len(lines) == len(first) else min(len(lines), len(first))


def _describe(
    rows: Sequence[Sequence[float]], own: Sequence[tuple[str, float]], num_arguments: int
) -> str:
    """Return which rank differs from rank 0, and in what; empty: none does."""
    for rank, (place, value) in enumerate(rows):
        number = int(place)
        if number < 0:
            continue
        if number < num_arguments:
            name, mine = own[number]
            there = "None" if value == ABSENT else f"{value:g}"
            here = "None" if mine == ABSENT else f"{mine:g}"
            return (
                f"rank {rank} was started with {name}={there}, and rank 0 with {here}: give every "
                "rank the same arguments"
            )
        if number >= len(own):
            what = f"has more tensors than rank 0's, which ends with {own[-1][0]}"
        elif value == ABSENT:
            what = f"ends before {own[number][0]}"
        else:
            what = f"differs from rank 0's at {own[number][0]}, where it has {value:g} values"
        return f"the model of rank {rank} {what}: make the same model on every rank"
    return ""
