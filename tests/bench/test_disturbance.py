"""What is counted while paths run."""

import time

from phalanx.bench.disturbance import Disturbance


def test_only_paths_that_keep_their_core_are_watched() -> None:
    disturbance = Disturbance()
    with disturbance.watch("gloo"):
        time.sleep(0.01)
    assert (disturbance.watched_s, disturbance.preempted) == (0.0, 0)
    for path in ("window", "mpi"):
        with disturbance.watch(path):
            time.sleep(0.01)
    assert 0.02 <= disturbance.watched_s < 2
    assert disturbance.preempted >= 0
