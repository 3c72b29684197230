"""The one waiting policy: spin while that is cheap, then yield, then sleep, never for ever.

With a core for every rank a spinning wait sees a flag within a fraction of a microsecond. With
more ranks than cores each spin keeps the awaited rank from running, so the wait yields at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass


class WaitTimeoutError(TimeoutError):
    """Ranks did not come in time; the message names them and what was waited for."""


@dataclass(frozen=True, kw_only=True)
class WaitPolicy:
    """How long to look, and how: `spins` looks in a row, then `yields` looks that each offer the
    core to others, then looks `nap_s` apart."""

    spins: int
    yields: int
    nap_s: float

    @classmethod
    def for_node(cls, ranks: int, cores: int) -> WaitPolicy:
        """The policy for `ranks` ranks that share `cores` cores."""
        if ranks > cores:
            return cls(spins=1, yields=100, nap_s=100e-6)
        return cls(spins=2_000, yields=20_000, nap_s=100e-6)


def wait_until(
    ready: Callable[[], bool],
    policy: WaitPolicy,
    *,
    timeout_s: float,
    on_timeout: Callable[[], str],
) -> None:
    """Return as soon as `ready()` is true.

    Raises: WaitTimeoutError with the text of `on_timeout()` after `timeout_s` seconds.
    """
    for _ in range(policy.spins):
        if ready():
            return
    deadline = time.monotonic() + timeout_s
    looks = 0
    while not ready():
        looks += 1
        if looks <= policy.yields:
            os.sched_yield()
        else:
            time.sleep(policy.nap_s)
        if looks % 64 == 0 and time.monotonic() > deadline:
            raise WaitTimeoutError(on_timeout())
