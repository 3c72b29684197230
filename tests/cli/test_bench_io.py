"""`phalanx bench io` and `phalanx study io` from the command to the page, with real readers."""

import json
import signal
import time
from pathlib import Path

import pytest

from phalanx.bench.io.config import FORMATS
from phalanx.bench.io.formats import unavailable_reason
from phalanx.records.files import rank_file, read_events, read_io
from phalanx.records.io import IoEpochEvent
from tests.cli.conftest import Phalanx, Started

PROFILE = """\
name: tiny
source: this test
num_files: 8
samples_per_file: 30
sample_bytes: 2000
batch_size: 12
compute_s: {a100: 0.002}
"""


@pytest.fixture(autouse=True)
def profile(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(PROFILE)


def test_a_profile_to_begin_with_is_printed(forked_phalanx: Phalanx) -> None:
    done = forked_phalanx("bench", "io", "--profile", "cosmoflow", "--print-profile")
    assert done.returncode == 0
    assert "sample_bytes: 2828486" in done.stdout


def test_a_bad_profile_is_a_sentence(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(PROFILE.replace("batch_size", "batch"))
    done = forked_phalanx("bench", "io", "--profile", "tiny.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("phalanx: --profile tiny.yaml: Object contains unknown field")
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.mpi
def test_every_format_on_one_and_two_ranks(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    done = forked_phalanx(
        *("bench", "io", "--profile", "tiny.yaml", "--runs", "1", "--ranks", "1", "2"),
        *("--against", "read", "--output", "out", "--json"),
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    formats = {name for name in FORMATS if unavailable_reason(name) is None}
    assert {row["format_option"] for row in read["rows"]} == formats
    assert {row["wrong"] for row in read["rows"]} == {0}
    out = tmp_path / "out"
    bench = read_io(out)
    assert bench.outcome.status == "completed"
    assert (bench.setting.num_samples, bench.setting.steps) == (240, 20)
    for ranks in (1, 2):
        for rank in range(ranks):
            events = read_events(rank_file(out / f"ranks-{ranks}", rank))
            epochs = [e for e in events if isinstance(e, IoEpochEvent)]
            # Two rounds, two caches; flat out and with compute, and a plain read.
            assert len(epochs) == 2 * 2 * 3 * len(formats)
            own = [epoch for epoch in epochs if epoch.cell.loader == "phalanx"]
            assert {epoch.samples for epoch in own} == {240}
            assert {len(epoch.waits_s) for epoch in own} == {20}
    assert not (out / "data").exists()
    assert (out / "report.html").exists()


@pytest.mark.long
def test_beside_pytorchs_loader(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    done = forked_phalanx(
        *("bench", "io", "--profile", "tiny.yaml", "--formats", "npy", "--cache", "warm"),
        *("--runs", "1", "--readers", "1", "--kinds", "threads", "processes"),
        *("--against", "torch", "--output", "out", "--keep"),
    )
    assert done.returncode == 0, done.stderr
    assert "DataLoader" in done.stdout
    events = read_events(rank_file(tmp_path / "out" / "ranks-1", 0))
    epochs = [event for event in events if isinstance(event, IoEpochEvent)]
    assert {(e.cell.loader, e.cell.kind) for e in epochs} == {
        ("phalanx", "threads"),
        ("phalanx", "processes"),
        ("torch", "processes"),
    }
    assert sum(epoch.wrong for epoch in epochs) == 0
    assert list((tmp_path / "out" / "data").rglob("*.npy"))

    again = forked_phalanx("bench", "io", "--profile", "tiny.yaml", "--output", "out")
    assert again.returncode == 2
    assert "already holds the records of a bench" in again.stderr


def test_interrupted_it_takes_its_data_away(forked_started: Started, tmp_path: Path) -> None:
    process = forked_started(
        *("bench", "io", "--profile", "tiny.yaml", "--formats", "files", "npy"),
        *("--runs", "100000", "--against", "read", "--output", "out"),
    )
    out = tmp_path / "out"
    deadline = time.monotonic() + 60
    while not rank_file(out / "ranks-1", 0).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (out / "data").exists()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert read_io(out).outcome.status == "interrupted"
    assert not (out / "data").exists()


def test_a_study_goes_on_where_it_stopped(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    words = (
        *("study", "io", "--profiles", "tiny.yaml", "--formats", "npy", "--readers", "1"),
        *("--depth", "1", "2", "--compute-scales", "0.5", "1", "--runs", "1"),
        *("--cache", "warm", "--study-dir", "out"),
    )
    done = forked_phalanx(*words)
    assert done.returncode == 0, done.stderr
    assert "I/O-bound: " in done.stdout
    out = tmp_path / "out"
    assert not (out / "data").exists()
    first = read_io(out / "tiny-compute-1").started_at
    command = read_io(out / "tiny-compute-0.5").command
    assert command.startswith("phalanx bench io --profile tiny.yaml --formats npy --readers 1")
    (out / "tiny-compute-0.5" / "io.json").unlink()
    again = forked_phalanx(*words)
    assert again.returncode == 0, again.stderr
    assert read_io(out / "tiny-compute-1").started_at == first
    assert read_io(out / "tiny-compute-0.5").outcome.status == "completed"
    assert (out / "attempts").is_dir()
