"""`phalanx study survival` from the command to the page, with real faults."""

import os
from pathlib import Path

import pytest

from phalanx.launch.installation import find_mpi
from phalanx.records.files import read_run
from phalanx.report.survival.findings import same_bits, same_losses
from phalanx.report.survival.study_data import read_study_data
from phalanx.study.survival_run import WAYS
from tests.cli.conftest import Phalanx

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
    data = read_study_data(folder)
    assert [run.way for run in data.runs] == ways
    for run in data.runs[1:]:
        assert run.timeline.faults, run.run.name
    bits, losses = same_bits(data), same_losses(data)
    assert bits is not None and (bits.num, bits.exceptions) == (len(ways) - 1, ())
    assert losses is not None and losses.exceptions == ()
    assert read_run(folder / "restarts-s0").restarts
    page = (folder / "report.html").read_text()
    assert "The same bits through" in page
    assert can_survive or "left out: in-place: --survive: " in page
