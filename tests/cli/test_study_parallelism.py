"""`phalanx study parallelism` from the command to the page, with real runs."""

from pathlib import Path

import pytest

from phalanx.records.files import read_bench, read_run, read_study
from tests.cli.conftest import Phalanx

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]

TINY = (
    *("study", "parallelism", "--dataset", "digits", "--models", "mlp", "--ranks", "2"),
    *("--schemes", "sequential", "ring", "two-servers", "1f1b", "--epochs", "1"),
    *("--train-samples", "512", "--validation-samples", "200"),
    *("--hidden", "16", "--workers", "2", "--algorithms-s", "0.5"),
)
RUNS = [
    *("mlp-sequential-1-s0", "mlp-ring-2-s0", "mlp-1f1b-2-s0"),
    *("scratch-server-3-h16", "scratch-library-2-h16", "scratch-ring-2-h16"),
]


def test_a_study_is_made_once_and_drawn(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    words = (*TINY, "--study-dir", str(folder))
    done = forked_phalanx(*words, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_study(folder).runs == RUNS
    assert {read_run(folder / name).outcome.status for name in RUNS} == {"completed"}
    assert "left out: mlp-two-servers-2-s0: " in done.stdout
    ring = next(line.split() for line in done.stdout.splitlines() if line.startswith("mpi ring"))
    assert "=" in ring, "counted bytes are those of the formula"
    (bench,) = (folder / "algorithms").glob("*/bench.json")
    assert read_bench(bench.parent).outcome.status == "completed"
    page = (folder / "report.html").read_text()
    for words_shown in ("Pipelines, as they ran", "From scratch", "All-reduce on messages"):
        assert words_shown in page

    again = forked_phalanx(*words)
    assert again.returncode == 0
    assert "6 of 6 runs are already done" in again.stdout
    assert not (folder / "attempts").exists()
