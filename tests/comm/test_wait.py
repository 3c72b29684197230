import time

import pytest

from phalanx.comm.wait import WaitPolicy, WaitTimeoutError, wait_until

QUICK = WaitPolicy(spins=10, yields=10, nap_s=1e-4)


def test_returns_once_the_condition_holds() -> None:
    looks = iter([False] * 50 + [True])
    wait_until(lambda: next(looks), QUICK, timeout_s=5, on_timeout=lambda: "never")


def test_timeout_carries_the_text_and_is_kept() -> None:
    began = time.monotonic()
    with pytest.raises(WaitTimeoutError, match="rank 3 is missing"):
        wait_until(lambda: False, QUICK, timeout_s=0.1, on_timeout=lambda: "rank 3 is missing")
    assert 0.1 <= time.monotonic() - began < 2


def test_a_long_wait_does_not_burn_the_core() -> None:
    """Oversubscribed ranks must leave the core to the one they wait for."""
    policy = WaitPolicy.for_node(ranks=4, cores=2)
    began, cpu_began = time.monotonic(), time.process_time()
    with pytest.raises(WaitTimeoutError):
        wait_until(lambda: False, policy, timeout_s=0.5, on_timeout=lambda: "")
    assert time.process_time() - cpu_began < 0.5 * (time.monotonic() - began)


def test_spins_only_with_a_core_for_every_rank() -> None:
    assert WaitPolicy.for_node(ranks=2, cores=2).spins > 100
    assert WaitPolicy.for_node(ranks=3, cores=2).spins == 1
