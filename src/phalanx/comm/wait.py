"""The wait policy: spin while that is cheap, then yield, then sleep, never forever.

With a core for every rank a spinning wait sees a flag within a fraction of a microsecond. With
more ranks than cores each spin keeps the awaited rank from running, so the wait yields at once;
with many more the polls of all waiting ranks would fill the cores, so they become fewer. A long
wait polls rarely: that adds a small part to the wait, and leaves the core to others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

# Yields end after this time too: then the first nap adds a hundredth to the wait. Counted in polls
# alone they lasted as long as a poll was slow: a seventh of a wait of 2 s on a busy machine.
YIELDING_S = 0.05
YIELDS = 200  # divided by the square of the ranks per core: each has all others run before it
# The messages of other nodes come through the system: beside a rank that spins on its core its work
# waits for the end of a slice, 4 ms. A poll of MPI takes some 2 µs, a yield to nobody less.
SPINS_BETWEEN_NODES = 20
NAP_S_PER_RANK = 25e-6  # polls of some 5 µs take a fifth of a nap of this length per rank
NAP_SHARE = 1 / 100  # a nap, of the wait so far
# Short waits dominate over a network, above all with a compressor; long ones overlap compute.
NETWORK_NAP_S, NETWORK_NAP_SHARE = 20e-6, 1 / 20
# Each poll delays compute that shares its only core, and a late poll is hidden.
BESIDE_NAP_S, BESIDE_NAP_SHARE = 300e-6, 1 / 5
LONGEST_NAP_S = 2e-3  # limit unless dozens of ranks share a core
# A yield that takes this long has given the core to a process that computes; twice in a short time
# is contention. A sleeper then gets the core when it wakes, a yielder waits for all others each
# time. So sleep, and yield again after many times what that has cost. The same as in shm_wait.c.
SLOW_S, TWICE_WITHIN_S, CROWDED_TIMES, CROWDED_S = 1e-3, 0.25, 20, 0.1


class WaitTimeoutError(TimeoutError):
    """Ranks did not arrive in time; the message names them and the call."""


@dataclass(frozen=True, kw_only=True)
class WaitPolicy:
    """Polling policy: `spins` polls in a row, then at most `yields` polls that each yield the core,
    then polls `nap_s` apart, and farther and farther apart."""

    spins: int
    yields: int
    nap_s: float
    nap_share: float = NAP_SHARE

    @classmethod
    def for_node(cls, ranks: int, cores: int) -> WaitPolicy:
        """Return the policy for `ranks` ranks that share `cores` cores."""
        if ranks > cores:
            ranks_a_core = ranks / cores
            return cls(
                spins=1,
                yields=min(100, int(YIELDS / ranks_a_core**2)),
                nap_s=max(100e-6, NAP_S_PER_RANK * ranks_a_core),
            )
        return cls(spins=2_000, yields=20_000, nap_s=100e-6)

    def between_nodes(self) -> WaitPolicy:
        """Return this policy for waits for other nodes: it yields to what moves the messages."""
        return replace(self, spins=min(self.spins, SPINS_BETWEEN_NODES))

    @classmethod
    def for_network(cls) -> WaitPolicy:
        """Return the policy where every wait takes longer than a nap, and the thread that moves the
        messages needs the core meanwhile."""
        return cls(spins=1, yields=0, nap_s=NETWORK_NAP_S, nap_share=NETWORK_NAP_SHARE)

    @classmethod
    def beside_compute(cls) -> WaitPolicy:
        """Return the policy of a thread that waits while this rank computes."""
        return cls(spins=1, yields=0, nap_s=BESIDE_NAP_S, nap_share=BESIDE_NAP_SHARE)


class CoreContention:
    """Estimate of whether other processes compete for the cores of waiting ranks."""

    def __init__(self) -> None:
        self._slow_at_s = -TWICE_WITHIN_S
        self._until_s = 0.0

    def is_contended(self, now_s: float) -> bool:
        return now_s < self._until_s

    def record_yield(self, began_s: float, ended_s: float) -> None:
        lasted_s = ended_s - began_s
        if lasted_s < SLOW_S:
            return
        if began_s - self._slow_at_s < TWICE_WITHIN_S:
            self._until_s = ended_s + max(CROWDED_S, CROWDED_TIMES * lasted_s)
        self._slow_at_s = ended_s


def wait_until(
    ready: Callable[[], bool],
    policy: WaitPolicy,
    *,
    timeout_s: float,
    on_timeout: Callable[[], str],
    nap: Callable[[float], None] = time.sleep,
    contention: CoreContention | None = None,
) -> None:
    """Return as soon as `ready()` is true.

    nap: sleeps that many seconds, or until there is reason to poll again. contention: state kept
    from wait to wait.

    Raises: WaitTimeoutError with the text of `on_timeout()` after `timeout_s` seconds.
    """
    for _ in range(policy.spins):
        if ready():
            return
    began = now = time.monotonic()
    contention = contention or CoreContention()
    for _ in range(policy.yields):
        if ready():
            return
        if contention.is_contended(now) or now - began > YIELDING_S:
            break
        os.sched_yield()
        before, now = now, time.monotonic()
        contention.record_yield(before, now)
    longest_s = max(LONGEST_NAP_S, 4 * policy.nap_s)
    while True:
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise WaitTimeoutError(on_timeout())
        nap(max(policy.nap_s, min(longest_s, policy.nap_share * waited_s)))
        if ready():
            return
