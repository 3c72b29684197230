"""A slow rank is named, and given fewer micro-batches; the bits stay the same."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.records.events import RebalancedEvent, SlowRankEvent, StepEvent
from phalanx.records.files import rank_file, read_events
from phalanx.run.defaults import REBALANCE, rebalances
from tests.conftest import Ranks


@pytest.mark.mpi
def test_a_slow_rank_gets_fewer_micro_batches(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    program = programs("slow_rank.py")
    ranks.mpi(1, program, str(tmp_path), "0")
    said = ranks.mpi(2, program, str(tmp_path), "0.0005", "0.006")
    truth = json.loads((tmp_path / "1-0.json").read_text())
    assert [json.loads((tmp_path / f"2-{rank}.json").read_text()) for rank in range(2)] == [
        truth
    ] * 2
    first, second = (list(read_events(rank_file(tmp_path / "run", rank))) for rank in range(2))
    slow = next(event for event in first if isinstance(event, SlowRankEvent))
    assert (slow.name, slow.phase) == ("rank 1", "forward") and slow.ratio > 1.5
    assert slow.steps >= 40 and "rank 1: forward " in said
    moved = next(event for event in first if isinstance(event, RebalancedEvent))
    assert moved.former == [4, 4] and moved.micro_batches[1] < 4
    assert not [event for event in second if isinstance(event, SlowRankEvent | RebalancedEvent)]
    samples = {event.step: event.samples for event in second if isinstance(event, StepEvent)}
    full = [n for step, n in sorted(samples.items()) if step % 3 < 2]  # of 24 samples
    assert full[0] == 12 and full[-1] < 12


@pytest.mark.parametrize(("given", "asked"), [(True, "0"), (None, "1")])
def test_without_a_fixed_order_of_sums_it_is_refused(
    given: bool | None, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REBALANCE, asked)
    with pytest.raises(UserError, match="give bitwise=True"):
        rebalances(given, bitwise=False)
    assert rebalances(given, bitwise=True)
    assert not rebalances(False, bitwise=False)
