"""An epoch with an accelerator that is only waited for: while a real one computes, the processor is
free for the loader, so its compute time is slept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.bench.io.formats.store import Indices, Rows
from phalanx.bench.io.samples import wrong_samples

SPIN_S = 2e-4  # the end of a sleep comes late by less than this


@dataclass(frozen=True, kw_only=True)
class EpochTiming:
    total_s: float
    waits_s: list[float]
    samples: int
    wrong: int


def timed_epoch(
    batches: Iterator[Rows], wanted: list[Indices], *, compute_s: float, began: float
) -> EpochTiming:
    """Take every batch, compute, take the next.

    began: by perf_counter, before the loader was started: the first wait holds what that takes.
    """
    waits_s, samples, wrong = [], 0, 0
    asked = began
    for indices in wanted:
        rows = next(batches)
        got = time.perf_counter()
        waits_s.append(got - asked)
        samples += len(rows)
        wrong += wrong_samples(rows, indices)
        del rows  # a step done, its batch is given back
        if compute_s:
            wait_until(got + compute_s)
        asked = time.perf_counter()
    return EpochTiming(total_s=asked - began, waits_s=waits_s, samples=samples, wrong=wrong)


def wait_until(moment: float) -> None:
    """Sleep, and spin over the very end."""
    if (left_s := moment - time.perf_counter() - SPIN_S) > 0:
        time.sleep(left_s)
    while time.perf_counter() < moment:
        pass
