"""monitored_barrier: a barrier that reports the missing ranks."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import DistBackendError
from torch.distributed import distributed_c10d as c10d

from phalanx.torch_backend.process_group_base import ProcessGroupMPIBase


class MonitoredBarrierMixin(ProcessGroupMPIBase):
    """`monitored_barrier` of `ProcessGroupMPI`."""

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Run a barrier with its own timeout, whose error names the missing ranks in gloo's words.

        Every timeout of this backend names all missing ranks. With `wait_all_ranks` the error
        begins with all of them, else with one.

        Raises: DistBackendError.
        """
        timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        limit = f"{(self._engine.timeout_s if timeout_s is None else timeout_s) * 1e3:.0f} ms"
        if timeout_s is not None and timeout_s <= 0:
            raise DistBackendError(
                f"Rank {self.rank()} timed out in monitoredBarrier after {limit}: it had no time"
            )

        def meet() -> None:
            self._engine.barrier(name="monitored_barrier", timeout_s=timeout_s)
            self._engine.check_peers()  # a late rank finds flags of peers that have already left

        try:
            self._run("monitored_barrier", meet, is_async=False, results=[])
        except DistBackendError as error:
            missing = missing_ranks(str(error))
            if self.rank() != 0:
                text = (
                    f"Rank {self.rank()} successfully reached monitoredBarrier, but received "
                    "errors while waiting for others"
                )
            elif not missing:
                text = f"Rank 0 timed out in monitoredBarrier after {limit}"
            else:
                shown = f"Ranks {', '.join(missing)}" if wait_all_ranks else f"Rank {missing[0]}"
                text = f"{shown} failed to pass monitoredBarrier in {limit}"
            if self._engine.broken is None or "Timed out" in str(error):
                self._engine.fail(f"{text}: {error}")  # late ranks get this error
            raise DistBackendError(f"{text}: {error}") from None


def missing_ranks(text: str) -> list[str]:
    """Return the ranks that a timeout names: "… for rank 1, 2 (world 5)", or "… for rank 1, which
    is in all_reduce number 3, 2, which is in …"."""
    found = re.search(r" waited .*? for rank (.*)", text)
    return re.findall(r"(?:^|, )(\d+)(?= \(world|,| |$)", found[1]) if found else []


def patch_monitored_barrier() -> None:
    """Patch `monitored_barrier`, which refuses every backend but gloo."""
    original = c10d.monitored_barrier
    if getattr(original, "patched_by_phalanx", False):
        return

    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        asked = group or c10d._get_default_group()
        if isinstance(asked, MonitoredBarrierMixin):
            return asked.monitored_barrier(timeout, wait_all_ranks)
        return original(group, timeout, wait_all_ranks)

    monitored_barrier.__doc__ = original.__doc__
    monitored_barrier.patched_by_phalanx = True  # type: ignore[attr-defined]
    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier
