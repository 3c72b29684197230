"""What the ranks of `programs/all_reduces.py` have written down."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import PATIENCE

RECOVERY_S, END_S = 2.0, 0.1
"""On any machine."""


class Run(NamedTuple):
    """Records of a run by original rank."""

    killed: dict[int, float]
    survivors: dict[int, dict[str, Any]]

    def seconds_to_notice(self) -> list[float]:
        """From the last of the deaths that a rank recovered from to its notice, where that was not
        in a recovery already."""
        recoveries = [each for record in self.survivors.values() for each in record["recoveries"]]
        return [
            recovery["noticed"] - max(self.killed[rank] for rank in recovery["lost"])
            for recovery in recoveries
            if recovery["attempts"] == 1
            and max(self.killed[rank] for rank in recovery["lost"]) < recovery["noticed"]
        ]

    def seconds_to_recover(self) -> list[float]:
        """From notice to the new world, of recoveries in which nobody died."""
        return [
            recovery["recovered"] - recovery["noticed"]
            for record in self.survivors.values()
            for recovery in record["recoveries"]
            if recovery["attempts"] == 1
        ]


def read_run(folder: Path) -> Run:
    killed = {number(path): float(path.read_text()) for path in folder.glob("killed-*")}
    records = {number(path): json.loads(path.read_text()) for path in folder.glob("survivor-*")}
    return Run(killed, records)


def number(path: Path) -> int:
    return int(path.stem.split("-")[1])


def check(ran: Run, *, notice_s: float) -> None:
    """Check that survivors have lost those that died, and no other, in time."""
    for record in ran.survivors.values():
        lost = [rank for recovery in record["recoveries"] for rank in recovery["lost"]]
        # Who dies after its last step is missed by nobody.
        missed = set(ran.killed) - set(lost)
        assert set(lost) <= set(ran.killed) and len(set(lost)) == len(lost)
        assert set(record["ranks"]) == set(ran.survivors) | missed
        assert all(ran.killed[rank] > record["ended"] - END_S * PATIENCE for rank in missed)
    assert len({record["steps"] for record in ran.survivors.values()}) == 1
    assert max(ran.seconds_to_notice(), default=0) < notice_s * PATIENCE
    assert max(ran.seconds_to_recover(), default=0) < RECOVERY_S * PATIENCE
