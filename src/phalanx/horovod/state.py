"""The same parameters, optimizer state and objects on every rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from phalanx.errors import UserError
from phalanx.horovod.collectives import broadcast_async_, synchronize
from phalanx.horovod.ranks import joined


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[Tensor | tuple[str, Tensor]], root_rank: int
) -> None:
    """Give every rank the tensors of `root_rank`, in place. Collective.

    Args:
        params: `model.state_dict()`, `model.named_parameters()`, or tensors; the same on every
            rank.
        root_rank: Rank whose values all ranks get.

    Raises:
        UserError: For values that are no tensors.
    """
    items = params.items() if isinstance(params, Mapping) else params
    tensors = [item[1] if isinstance(item, tuple) else item for item in items]
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise UserError(
                f"hvd.broadcast_parameters takes tensors, not {type(tensor).__name__}: "
                "hvd.broadcast_object is for other objects"
            )
    for handle in [broadcast_async_(tensor, root_rank) for tensor in tensors]:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: Optimizer,
    root_rank: int,
    model: object = None,  # noqa: ARG001
) -> None:
    """Give every rank the state and the options (learning rate, …) of the optimizer of `root_rank`.
    Collective. Pickled: the state is in memory twice meanwhile.

    Args:
        optimizer: Optimizer of the same kind and parameters on every rank.
        root_rank: Rank whose state all ranks get.
        model: Horovod's name; it has no effect.
    """
    state = broadcast_object(optimizer.state_dict(), root_rank)
    if joined().world.rank != root_rank:
        optimizer.load_state_dict(state)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,  # noqa: ARG001
) -> Any:
    """Return the object of `root_rank`, pickled on the way. Collective.

    Args:
        obj: Object of this rank.
        root_rank: Rank whose object all ranks get.
        name: Not needed: calls of the ranks match by their order.
    """
    ranks = joined()
    shared = ranks.world.group.share(obj, root=root_rank)
    return obj if ranks.world.rank == root_rank else shared


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:  # noqa: ARG001
    """Return the objects of all ranks in their order, pickled on the way. Collective.

    Args:
        obj: Object of this rank.
        name: Not needed: calls of the ranks match by their order.
    """
    world = joined().world
    return [world.group.share(obj, root=root) for root in range(world.size)]
