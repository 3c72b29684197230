"""monitored_barrier: a barrier that says who did not come."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from torch.distributed import distributed_c10d as c10d

from phalanx.torch_backend.membership import Membership


class Monitored(Membership):
    def monitored_barrier(
        self,
        timeout: timedelta | float | None = None,
        wait_all_ranks: bool = False,  # noqa: ARG002
    ) -> None:
        """Every timeout of this backend names all ranks that did not come, so this is a barrier
        with a timeout of its own; `wait_all_ranks` changes nothing."""
        timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        call = partial(self._engine.barrier, timeout_s=timeout_s)
        self._run("monitored_barrier", call, is_async=False, results=[])


def accept_monitored_barrier() -> None:
    """PyTorch's function refuses every backend but gloo before it asks the group."""
    import torch.distributed as dist

    original = c10d.monitored_barrier
    if getattr(original, "asks_the_group", False):
        return

    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        asked = group or c10d._get_default_group()
        if isinstance(asked, Monitored):
            return asked.monitored_barrier(timeout, wait_all_ranks)
        return original(group, timeout, wait_all_ranks)

    monitored_barrier.__doc__ = original.__doc__
    monitored_barrier.asks_the_group = True  # type: ignore[attr-defined]
    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier
