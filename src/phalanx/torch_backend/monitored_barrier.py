"""monitored_barrier: a barrier that reports the missing ranks."""

from __future__ import annotations

import re

from torch.distributed import DistBackendError

from phalanx.comm.group import Group
from phalanx.torch_backend.torch_call import TorchCall


def monitored_barrier(
    call: TorchCall, engine: Group, timeout_s: float | None, *, wait_all_ranks: bool
) -> None:
    """Run a barrier with its own timeout, whose error names the missing ranks in gloo's words.

    Every timeout of this backend names all missing ranks. With `wait_all_ranks` the error
    begins with all of them, else with one.

    Raises: DistBackendError.
    """
    limit = f"{(engine.timeout_s if timeout_s is None else timeout_s) * 1e3:.0f} ms"
    if timeout_s is not None and timeout_s <= 0:
        raise DistBackendError(
            f"Rank {engine.rank} timed out in monitoredBarrier after {limit}: no time was left"
        )

    def meet() -> None:
        engine.barrier(name="monitored_barrier", timeout_s=timeout_s)
        engine.check_peers()  # a late rank finds flags of peers that have already left

    try:
        call.submit(meet, [], [], is_inline=True)  # the options say asynchronous
    except DistBackendError as error:
        missing = missing_ranks(str(error))
        if engine.rank != 0:
            text = (
                f"Rank {engine.rank} successfully reached monitoredBarrier, but received "
                "errors while waiting for send/recv from rank 0"
            )
        elif not missing:
            text = f"Rank 0 timed out in monitoredBarrier after {limit}"
        else:
            shown = f"Ranks {', '.join(missing)}" if wait_all_ranks else f"Rank {missing[0]}"
            text = f"{shown} failed to pass monitoredBarrier in {limit}"
        if engine.broken is None or "Timed out" in str(error):
            engine.fail(f"{text}: {error}")  # late ranks get this error
        raise DistBackendError(f"{text}: {error}") from None


def missing_ranks(text: str) -> list[str]:
    """Return the ranks that a timeout names: "… for rank 1, 2 (world 5)", or "… for rank 1, which
    is in all_reduce number 3, 2, which is in …"."""
    found = re.search(r" waited .*? for rank (.*)", text)
    return re.findall(r"(?:^|, )(\d+)(?= \(world|,| |$)", found[1]) if found else []
