"""`phalanx study survival` from the command to the page, with real faults."""

import os
from pathlib import Path

import pytest

from phalanx.jobs.installation import find_mpi
from phalanx.records.files import read_run
from phalanx.report.pages.survival import LABELS, same_bits
from phalanx.study.survival import WAYS
from tests.cli.conftest import Phalanx
from tests.report.made_view import read

pytestmark = [pytest.mark.mpi, pytest.mark.long]
TINY = (
    *("study", "survival", "--quick", "--dataset", "digits", "--steps", "600", "--fault-s", "1.5"),
    *("--width", "64", "--batch-size", "64", "--train-samples", "2560"),
)
IN_PLACE = ("in-place", "stops")


def test_every_way_ends_with_the_same_bits(phalanx: Phalanx, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    done = phalanx(*TINY, "--study-dir", str(folder), timeout_s=600)
    assert done.returncode == 0, done.stderr
    can_survive = find_mpi(os.environ).vendor == "openmpi"
    ways = [way for way in WAYS if can_survive or way not in IN_PLACE]
    _, (view,) = read(folder)
    assert [row["way"] for row in view.data.runs] == [LABELS[way] for way in ways]
    for row in view.data.runs[1:]:
        assert row["num_faults"], row["run"]
    bits, losses = (told.text for told in same_bits(view))
    assert bits.startswith(f"{len(ways) - 1} of {len(ways) - 1} run")
    assert "not" not in losses
    assert read_run(folder / "restarts-s0").restarts
    page = (folder / "report.html").read_text()
    assert "Same bits through" in page
    assert can_survive or "left out: in-place: --survive: " in page
