"""SIGTERM to a spare that waits stops the whole run with a checkpoint, as to any other rank."""

import os
import signal
import time
from pathlib import Path

import pytest

from phalanx.errors import EXIT_STOPPED
from phalanx.jobs.outcome import lost_ranks
from tests.conftest import PATIENCE
from tests.run.test_preemption import launched, send, truth, wait_for

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("openmpi"),
]
__all__ = ["truth"]
RANKS = 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("spares", "kills_rank_0"),
    [
        (1, False),
        (2, True),  # rank 0 may have been told: the next first rank is told again
    ],
)
def test_a_spare_is_asked_to_stop(
    tmp_path: Path, truth: str, spares: int, kills_rank_0: bool
) -> None:
    options = ["--survive", "--spares", str(spares)]
    with launched(tmp_path, 0, RANKS, *options) as process:
        wait_for(tmp_path / "trains", process)
        began = time.monotonic()
        send(process, tmp_path, RANKS + spares - 1)
        if kills_rank_0:
            os.kill(int((tmp_path / "process-0").read_text()), signal.SIGKILL)
        output, _ = process.communicate(timeout=60 * PATIENCE)
    print(f"stopped after {time.monotonic() - began:.1f} s")
    assert process.returncode == EXIT_STOPPED, output
    assert "phalanx: stopped after step" in output
    said = "".join(path.read_text() for path in (tmp_path / "logs-0").glob("rank-*.log"))
    assert ("rank 0 died" in said) == kills_rank_0, said
    with launched(tmp_path, 1, 1) as process:
        output, _ = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 0, output
    assert f"resuming from {tmp_path / 'checkpoints'}/epoch-" in output
    assert (tmp_path / "result").read_text() == truth


def test_a_job_that_has_lost_ranks_was_stopped_where_all_others_were() -> None:
    assert lost_ranks(3, {0: -9, 1: 75, 2: 75}, end=EXIT_STOPPED) == [0]
    assert lost_ranks(3, {1: 75, 2: 75}, end=EXIT_STOPPED) == [0], "its node is gone"
    assert lost_ranks(3, {0: -9, 1: 75, 2: 0}, end=EXIT_STOPPED) is None
    assert lost_ranks(3, {0: 1, 1: 75, 2: 75}, end=EXIT_STOPPED) is None
    assert lost_ranks(3, {0: -9, 1: 0, 2: 0}) == [0]
