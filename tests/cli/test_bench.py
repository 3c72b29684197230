"""`phalanx bench collectives` from the command to the page, with real ranks."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from phalanx.records.collectives import CallsEvent, JoinedEvent
from phalanx.records.files import rank_file, read_bench, read_events
from tests.cli.conftest import Phalanx, Started

QUICK = ("bench", "collectives", "--repeats", "4", "--seconds", "1")
BAD = {
    "a size that is none": (["--sizes", "64XB"], "--sizes 64XB: not a size"),
    "an unknown path": (["--paths", "smoke"], "--paths smoke is not one of window, phalanx"),
    "an unknown collective": (["--collectives", "scan"], "--collectives scan is not one of"),
    "bits of floats": (["--op", "bxor"], "float32 has no reduction BXOR"),
    "half a crowd": (["--crowd", "-1"], "--crowd must be at least 0, not -1"),
    "too large a crowd": (["--crowd", "99999999999"], "at most 1000 busy processes are started"),
    "no ranks": (["--ranks", "0"], "--ranks must be at least 1, not 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(forked_phalanx: Phalanx, tmp_path: Path, case: str) -> None:
    words, message = BAD[case]
    done = forked_phalanx("bench", "collectives", *words)
    assert message in done.stderr
    assert done.stderr.startswith("phalanx: ")
    assert len(done.stderr.splitlines()) <= 2
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


def test_help_has_examples(forked_phalanx: Phalanx) -> None:
    done = forked_phalanx("bench", "collectives", "--help")
    assert "For example:" in done.stdout
    assert done.stdout.count("phalanx bench collectives") >= 4


@pytest.mark.mpi
def test_all_reduce_on_two_ranks(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = forked_phalanx(*QUICK, "--sizes", "4,64KB", "--crowd", "1", "--output", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_bench(folder).outcome.status == "completed"
    for rank in range(2):
        calls = [e for e in read_events(rank_file(folder, rank)) if isinstance(e, CallsEvent)]
        measured = {call.path for call in calls}
        assert {"phalanx", "world", "mpi", "gloo"} <= measured
        assert {call.bytes for call in calls} == {4, 65_536}
        assert sum(call.wrong for call in calls) == 0
        for path in measured:
            # Rounds of all paths come one after the other: no path is measured in one go.
            mine = [c for c in calls if c.bytes == 4 and c.path == path]
            assert sum(len(call.times_s) for call in mine) == 4
            assert sorted(call.round for call in mine) == [0, 1, 2, 3]
    for peer in ("DeepSpeed", "oneCCL"):
        assert peer.lower() in measured or f"{peer}: Not measured: all-reduce: it is" in done.stdout
    assert "busbw" in done.stdout
    assert "beside 1 busy process" in done.stdout
    assert "beside 1 busy process" in (folder / "report.html").read_text()
    assert "All results of" in done.stdout
    assert (folder / "report.html").exists()

    again = forked_phalanx(*QUICK, "--output", str(folder))
    assert again.returncode == 2
    assert "already holds the records of a bench" in again.stderr


@pytest.mark.mpi
def test_every_collective_on_three_ranks_as_json(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    done = forked_phalanx(
        *QUICK,
        *("--ranks", "3", "--collectives", "all", "--sizes", "100,20KB", "--dtype", "int64"),
        *("--op", "max", "--loop", "1", "--paths", "window,phalanx,torch,mpi"),
        *("--json", "--output", str(tmp_path / "out")),
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    measured = {(row["collective"], row["path_option"]) for row in read["rows"]}
    for path in ("window", "phalanx", "torch", "mpi"):
        assert len({collective for collective, name in measured if name == path}) == 6
    assert {row["wrong"] for row in read["rows"]} == {0}
    sizes = {row["bytes"] for row in read["rows"] if row["collective"] == "all_gather"}
    assert sizes == {120, 20_496}  # multiples of 3 elements of 8 bytes


@pytest.mark.mpi
def test_an_interrupted_bench_keeps_its_records(forked_started: Started, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = ("--sizes", "4", "--paths", "phalanx,mpi", "--repeats", "100000000", "--crowd", "2")
    process = forked_started("bench", "collectives", *words, "--output", str(folder))
    deadline = time.monotonic() + 60
    while (
        not rank_file(folder, 0).exists() or b'"progress"' not in rank_file(folder, 0).read_bytes()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    crowd = busy_children(process.pid)
    assert len(crowd) == 2
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert read_bench(folder).outcome.status == "interrupted"
    assert read_bench(folder).setting.crowd == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in crowd)


@pytest.mark.mpi
def test_a_rank_that_is_killed_ends_the_bench(forked_started: Started, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = ("--sizes", "4", "--paths", "phalanx,mpi", "--repeats", "100000000")
    process = forked_started("bench", "collectives", *words, "--output", str(folder))
    os.kill(process_of_rank(folder, 1), signal.SIGKILL)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert told.startswith("phalanx: ")
    assert read_bench(folder).outcome.status == "failed"


def busy_children(parent: int) -> list[int]:
    """The processes of `--crowd`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_child = f"PPid:\t{parent}\n" in (path / "status").read_text()
            words = (path / "cmdline").read_text()
        except OSError:
            continue  # it has ended
        if is_child and "while True: pass" in words:
            found.append(int(path.name))
    return found


def process_of_rank(folder: Path, rank: int) -> int:
    """Waits until the rank has joined."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if rank_file(folder, rank).exists():
            for event in read_events(rank_file(folder, rank)):
                if isinstance(event, JoinedEvent):
                    return event.process_id
        time.sleep(0.05)
    raise AssertionError(f"rank {rank} has not joined")
