"""An epoch with an emulated accelerator: its compute time is slept, which leaves the CPU to the
loader, as a real accelerator would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.bench.io.formats.store import Indices, Rows
from phalanx.bench.io.samples import wrong_samples

SPIN_S = 2e-4  # a sleep ends late by less than this


@dataclass(frozen=True, kw_only=True)
class EpochTiming:
    total_s: float
    waits_s: list[float]
    samples: int
    wrong: int


def timed_epoch(
    batches: Iterator[Rows], wanted: list[Indices], *, compute_s: float, began: float
) -> EpochTiming:
    """Time an epoch: wait for each batch, then emulate its compute.

    began: perf_counter before the loader started; the first wait includes the start.
    """
    waits_s, samples, wrong = [], 0, 0
    asked = began
    for indices in wanted:
        rows = next(batches)
        got = time.perf_counter()
        waits_s.append(got - asked)
        samples += len(rows)
        wrong += wrong_samples(rows, indices)
        del rows  # release the buffer of the batch
        if compute_s:
            wait_until(got + compute_s)
        asked = time.perf_counter()
    return EpochTiming(total_s=asked - began, waits_s=waits_s, samples=samples, wrong=wrong)


def wait_until(moment: float) -> None:
    """Sleep until shortly before `moment`, then spin."""
    if (left_s := moment - time.perf_counter() - SPIN_S) > 0:
        time.sleep(left_s)
    while time.perf_counter() < moment:
        pass
