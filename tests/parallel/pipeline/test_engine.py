"""Pipelines on real ranks: parameters, traffic and order of work, by every schedule."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks, long

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]
TIMEOUT_S = 200  # 4 ranks on 2 busy cores


def all_done(output: str, count: int) -> None:
    done = re.findall(rf"rank (\d) of {count} is done", output)
    assert sorted(done) == [str(rank) for rank in range(count)]


@pytest.mark.parametrize("count", [long(2), 3, long(4)])
def test_one_process_is_the_truth(
    ranks: Ranks, programs: Callable[[str], Path], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_COUNT", "1")
    all_done(ranks.mpi(count, programs("pipelines.py"), "mpi", timeout_s=TIMEOUT_S), count)


def test_on_gloo(ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path) -> None:
    meeting = str(tmp_path / "meeting")
    all_done(ranks.mpi(2, programs("pipelines.py"), "gloo", meeting, timeout_s=TIMEOUT_S), 2)
