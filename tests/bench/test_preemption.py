"""What is counted while paths run."""

import time

from phalanx.bench.measure import PreemptionCounter


def test_only_paths_that_keep_their_core_are_watched() -> None:
    preemption = PreemptionCounter()
    with preemption.watch("gloo"):
        time.sleep(0.01)
    assert (preemption.watched_s, preemption.preempted) == (0.0, 0)
    for path in ("window", "mpi"):
        with preemption.watch(path):
            time.sleep(0.01)
    assert 0.02 <= preemption.watched_s < 2
    assert preemption.preempted >= 0
