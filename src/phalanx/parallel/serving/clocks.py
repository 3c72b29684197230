"""Bound on the workers' lead, and staleness of the weights that they used. Pure."""

from __future__ import annotations

from collections import Counter


class Clocks:
    """The steps of every worker in one epoch, as a server sees them.

    Two notions that are easily mixed up: a worker's *lead* is how many steps it has made more than
    the slowest one, which the bound is about; the *staleness* of its update is how many updates of
    others were applied after it had read the weights, which is what hurts.
    Source: Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel
    parameter server", NIPS 26, for the bound.
    """

    def __init__(self, workers: int, num_steps: int, max_lead: int | None) -> None:
        """num_steps: of every worker. max_lead: of a worker that begins a step; None: any.

        After its last step everybody waits for everybody, so that all have the same weights.
        """
        self.staleness: Counter[int] = Counter()
        """Updates by how many of others came between reading and writing."""
        self.leads: Counter[int] = Counter()
        """Steps that were begun, by the lead at which the worker was let go on."""
        self._num_steps, self._max_lead = num_steps, max_lead
        self._done = [0] * workers
        self._waiting: set[int] = set()
        self._num_updates = 0
        self._read_at = [0] * workers

    @property
    def awaited(self) -> list[int]:
        """Workers that have steps left and are not held back."""
        return [
            worker
            for worker, done in enumerate(self._done)
            if done < self._num_steps and worker not in self._waiting
        ]

    def push(self, worker: int, *, writes: bool = True) -> list[int]:
        """Record that `worker` has made a step and waits; return the workers that may continue, who
        read now.

        writes: whether the step has an update; one without samples has none.
        """
        if writes:
            self.staleness[self._num_updates - self._read_at[worker]] += 1
            self._num_updates += 1
        self._done[worker] += 1
        self._waiting.add(worker)
        slowest = min(self._done)
        released = [w for w in sorted(self._waiting) if self._may_continue(w, slowest)]
        for waiting in released:
            self._waiting.remove(waiting)
            self._read_at[waiting] = self._num_updates
            if self._done[waiting] < self._num_steps:
                self.leads[self._done[waiting] - slowest] += 1
        return released

    def _may_continue(self, worker: int, slowest: int) -> bool:
        done = self._done[worker]
        if done == self._num_steps:
            return slowest == done
        return self._max_lead is None or done - slowest <= self._max_lead
