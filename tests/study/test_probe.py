"""The look at the machine between runs."""

import multiprocessing
import time

import pytest

from phalanx.jobs.core_probe import call_s, probe
from phalanx.jobs.cores import usable_cores


def _busy(until: float) -> None:
    while time.monotonic() < until:
        pass


@pytest.mark.alone
def test_other_work_on_the_cores_is_seen() -> None:
    """Four busy processes for each core leave a thread about a fifth of it."""
    cores = usable_cores()
    context = multiprocessing.get_context("fork")
    others = [
        context.Process(target=_busy, args=(time.monotonic() + 20,)) for _ in range(4 * cores)
    ]
    for process in others:
        process.start()
    try:
        time.sleep(0.3)
        found = probe(cores, 1.0)
    finally:
        for process in others:
            process.kill()
            process.join()
    assert 0 < found.lowest <= found.core_share < 0.7


def test_the_pace_of_calls_is_of_processor_time() -> None:
    """At least one piece is timed, however short the time."""
    assert 0 < call_s(0.0) < 0.1
    assert 1e-6 < call_s(0.05) < 5e-3
