"""Ranks on this node without MPI: one command each, with the variables of torchrun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.launch.command import Command


def local_commands(
    ranks: int, program: Sequence[str], *, environ: Mapping[str, str]
) -> list[Command]:
    """Return one command per rank; variables set in `environ` are kept."""
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
