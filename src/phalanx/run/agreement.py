"""Agreement of the ranks of a program, each of which runs code of its own."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from torch import nn

from phalanx.comm.shared_folder import RankOnHost, by_host, gather_text
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup


def check_alike(
    group: RunGroup, model: nn.Module, arguments: Mapping[str, float | str | None]
) -> None:
    """Compare this rank's model and arguments with rank 0's. Collective.

    arguments: values that decide updates, by name.
    Raises: UserError, on every rank, that names the first rank that differs, and in what.
    """
    if group.size == 1:
        return
    lines = [f"{name}\t{value}" for name, value in arguments.items()]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        kind = f"{str(tensor.dtype).removeprefix('torch.')}, {tuple(tensor.shape)}"
        lines.append(f"{name} ({kind}{'' if tensor.requires_grad else ', without gradient'})")
    first = group.share("\n".join(lines)).split("\n")
    if text := first_text(group, _difference(group.rank, lines, first)):
        raise UserError(text)


def first_text(group: RunGroup, own: str) -> str:
    """Return the text of the first rank that has one; empty: none. Collective."""
    return next(filter(None, gather_text(group, own) if group.size > 1 else [own]), "")


def check_same_pack(group: RunGroup, fingerprint: str) -> None:
    """Raise UserError, on every rank, where a rank reads another pack than rank 0. Collective.

    fingerprint: of this rank's; empty for other data.
    """
    texts = gather_text(group, f"{fingerprint} {socket.gethostname()}")
    packs, hosts = zip(*(text.split(" ", 1) for text in texts), strict=True)
    others = [RankOnHost(rank, hosts[rank]) for rank, pack in enumerate(packs) if pack != packs[0]]
    if others:
        raise UserError(
            f"data: {by_host(others)} has a different pack at that path from rank 0 ({hosts[0]}): "
            "copy one pack to all nodes, or use a shared folder"
        )


def check_together(group: RunGroup, flag: bool, words: str) -> None:
    """Raise UserError, on every rank, when `flag` holds on some ranks alone. Collective.

    words: what these ranks do.
    """
    flags = [0.0] * group.size
    flags[group.rank] = float(flag)
    flags = group.sum(flags)
    if any(flags) and not all(flags):
        some = ", ".join(str(rank) for rank, value in enumerate(flags) if value)
        raise UserError(f"only some ranks ({some}) {words}: either all ranks must, or none")


def _difference(rank: int, own: Sequence[str], first: Sequence[str]) -> str:
    """Return in what a rank differs from rank 0, whose lines are `first`; empty: in nothing."""
    for here, there in zip_longest(own, first):
        if here == there:
            continue
        if here is not None and "\t" in here:
            (name, value), known = here.split("\t"), str(there).partition("\t")[2]
            return (
                f"rank {rank} was started with {name}={value}, but rank 0 with {known}: give every "
                "rank the same arguments"
            )
        if there is None:
            what = f"has more tensors than rank 0's, which ends with {first[-1]}"
        elif here is None:
            what = f"ends before {there}"
        else:
            what = f"differs from rank 0's at {there}, where it has {here}"
        return f"the model of rank {rank} {what}: make the same model on every rank"
    return ""
