"""Ranks on this node without MPI: one command each, told who it is the way torchrun does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.launch.command import Command


def local_commands(
    ranks: int, program: Sequence[str], *, environ: Mapping[str, str]
) -> list[Command]:
    """One command a rank; `environ` is what the user has set, which stays."""
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    if "GLOO_SOCKET_IFNAME" not in environ:
        # Gloo would resolve the host's name, which need not lead anywhere in a container.
        shared["GLOO_SOCKET_IFNAME"] = "lo"
    return [
        Command(
            words=tuple(program),
            environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
