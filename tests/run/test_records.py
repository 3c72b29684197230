"""Records of a program's run: what `phalanx report` reads, also of one that fails."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

import phalanx
from phalanx.cli.report import report
from phalanx.records.events import (
    EpochEvent,
    FinishedEvent,
    MemoryEvent,
    MetricsEvent,
    NoticeEvent,
    StepEvent,
)
from phalanx.records.files import rank_file, read_events, read_run
from phalanx.records.last_collectives import DUMP_DIR, dump_folder
from phalanx.report.folder import read_folder
from phalanx.report.page import content_of
from phalanx.run.batch import MicroBatch
from phalanx.run.departure import close_ended
from phalanx.run.options import Records
from phalanx.run.program import ProgramRun
from tests.conftest import ONE_THREAD, PATIENCE, Ranks, forked_python, long

INPUTS, TARGETS = torch.randn(20, 4), torch.randint(3, (20,))


@pytest.fixture(autouse=True)
def no_folder_for_dumps() -> Iterator[None]:
    """A run sets where its last collectives go, for as long as the process lives."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


class Net(nn.Linear):
    """A model by whose name records know it."""


def run_of(folder: Path | None, **options: object) -> ProgramRun:
    model = Net(4, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    options |= {"scheduler": StepLR(optimizer, 2, 0.5), "run_dir": folder}
    return phalanx.start(model, optimizer, (INPUTS, TARGETS), batch_size=8, epochs=2, **options)


def train(run: ProgramRun) -> None:
    for epoch in run.epochs():
        for batch in epoch:
            run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
        run.log(validation_loss=torch.tensor(0.5), seen=20)


def test_a_run_writes_what_a_report_draws(tmp_path: Path) -> None:
    folder, told = tmp_path / "run", []
    train(
        run_of(
            folder,
            micro_batches=3,
            records=Records(on_metrics=lambda *metrics: told.append(metrics)),
        )
    )
    assert told == [(2, {"validation_loss": 0.5, "seen": 20.0}), (5, told[0][1])]
    run = read_run(folder)
    assert (run.outcome.status, run.setting.model, run.setting.dataset) == (
        "completed", "Net", "tensors",
    )  # fmt: skip
    events = list(read_events(rank_file(folder, 0)))
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert [(step.epoch, step.step, step.samples) for step in steps] == [
        (0, 0, 8), (0, 1, 8), (0, 2, 4), (1, 3, 8), (1, 4, 8), (1, 5, 4),
    ]  # fmt: skip
    epochs = [event for event in events if isinstance(event, EpochEvent)]
    assert [(epoch.samples, epoch.correct) for epoch in epochs] == [(20, None), (20, None)]
    first = sum(step.loss_sum for step in steps[:3])
    assert epochs[0].loss_sum == pytest.approx(first) and 0.5 < first / 20 < 3
    logged = [event for event in events if isinstance(event, MetricsEvent)]
    assert [(event.epoch, event.step) for event in logged] == [(0, 2), (1, 5)]
    assert any(isinstance(event, MemoryEvent) for event in events)
    assert isinstance(events[-1], FinishedEvent)
    (measure,) = read_folder(folder).runs
    assert [epoch.train_accuracy for epoch in measure.trained] == [None, None]
    charts = [row.title for section in content_of(folder).sections for row in section.rows]
    assert "Metrics of the program" in charts


def test_the_loss_of_own_weights_is_their_mean(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = run_of(folder, micro_batches=2)
    for batch in run:
        loss = F.cross_entropy(run.model(batch.inputs), batch.targets)
        run.backward(0 * loss + (1.0 if batch.number else 4.0), weight=2.0 if batch.number else 1.0)
    assert run.training_loss() == pytest.approx(2.0)
    steps = [e for e in read_events(rank_file(folder, 0)) if isinstance(e, StepEvent)]
    assert [step.loss_sum / step.samples for step in steps] == pytest.approx([2.0] * 6)


def test_runs_of_one_program_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DUMP_DIR, raising=False)
    monkeypatch.setenv("PHALANX_RUN_DIR", str(tmp_path / "runs"))
    for _ in range(2):
        train(run_of(None))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "runs-2"]
    assert dump_folder() == tmp_path / "runs-2"
    assert DUMP_DIR not in os.environ  # a program that this one starts has a folder of its own
    with pytest.raises(phalanx.UserError, match="already holds the records of a run"):
        run_of(tmp_path / "runs")
    again = {"checkpoint_dir": tmp_path / "saved", "resume": True}  # none is there yet
    train(run_of(tmp_path / "runs", **again))
    assert read_run(tmp_path / "runs-3").outcome.status == "completed"


def test_a_trace_lies_beside_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(phalanx.UserError, match="give run_dir="):
        run_of(None, records=Records(trace=True))
    train(run_of(tmp_path / "run", records=Records(trace=True)))
    report(tmp_path / "run")
    told = capsys.readouterr()
    assert told.out == f"{tmp_path / 'run' / 'report.html'}\n"
    assert "trace of 1 rank" in told.err and (tmp_path / "run" / "trace.json").exists()


def test_metrics_are_numbers(tmp_path: Path) -> None:
    with (
        run_of(None) as run,
        pytest.raises(phalanx.UserError, match=r"run.log: x='a' is not a number"),
    ):
        run.log(x="a")


def generate(run: ProgramRun) -> Iterator[MicroBatch]:
    yield from run


HELD: list[Iterator[MicroBatch]] = []


def batches_of(run: ProgramRun, how: str) -> Iterable[MicroBatch]:
    """Return what a loop iterates that leaves the run after two of its steps."""
    match how:
        case "islice":
            return itertools.islice(run, 2)
        case "zip":
            return (batch for batch, _ in zip(run, range(2), strict=False))
        case "enumerate":
            return (batch for _, batch in enumerate(run))
        case "generator":
            return generate(run)
        case "held":
            HELD[:] = [iter(run)]
            return itertools.islice(HELD[0], 2)
    return run


def loop(run: ProgramRun, how: str) -> None:
    for batch in batches_of(run, how):
        if batch.step == 2:
            match how:
                case "error" | "error in a with":
                    raise KeyError
                case "return":
                    return
                case _:
                    break
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))


@pytest.mark.parametrize(
    "how",
    ["break", "return", "enumerate", "generator", "islice", "zip", "held", "error"],
)
def test_a_run_that_is_left_early_is_completed(how: str, tmp_path: Path) -> None:
    """Whoever left it by `islice`, or held its iterator, found it interrupted: it was read from
    the bytecode of the loop how it had ended. An error that the program has caught tells nobody."""
    run = run_of(tmp_path / "run")
    with contextlib.suppress(KeyError):
        loop(run, how)
    assert read_run(tmp_path / "run").outcome.status == "running"
    close_ended(at_exit=True)
    assert read_run(tmp_path / "run").outcome.status == "completed"
    events = read_events(rank_file(tmp_path / "run", 0))
    notices = [event.text for event in events if isinstance(event, NoticeEvent)]
    assert notices == ["the program left the loop after step 2 of 6"]


@pytest.mark.parametrize("seen", ["with", "backward", "cell"])
def test_a_run_that_an_error_is_known_to_have_ended_is_not(
    seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path / "run")
    with contextlib.suppress(KeyError, phalanx.UserError):
        if seen == "with":
            with run:
                loop(run, "error")
        elif seen == "backward":
            for batch in run:
                run.backward(run.model(batch.inputs))
        else:
            try:
                loop(run, "error")
            except KeyError as error:  # as a shell does
                monkeypatch.setattr(sys, "last_value", error, raising=False)
    close_ended(at_exit=True)
    assert read_run(tmp_path / "run").outcome.status == "running"


def test_a_cell_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start of a program ends the run before, whose loop was left, as its code tells."""
    monkeypatch.setenv("PHALANX_RUN_DIR", str(tmp_path / "run"))
    cell = (
        "run = run_of(None)\n"
        "for batch in run:\n"
        "    run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))\n"
        "    assert not fails\n"
        "    break\n"
    )
    for fails in (True, False, True):
        space = {"run_of": run_of, "F": F, "fails": fails}
        try:
            exec(compile(cell, "cell", "exec"), space)
        except AssertionError as error:
            monkeypatch.setattr(sys, "last_value", error, raising=False)
    close_ended(at_exit=True)
    folders = [tmp_path / name for name in ("run", "run-2", "run-3")]
    assert [read_run(folder).outcome.status for folder in folders] == [
        "running",  # "interrupted" at the end of the program
        "completed",
        "running",
    ]


@pytest.mark.parametrize(
    ("how", "code", "status", "said"),
    [
        ("error", 1, "failed", "ValueError: no good"),
        ("mistake", 2, "failed", "phalanx: run.backward takes a scalar loss"),
        ("leave", 0, "completed", ""),
    ],
)
def test_a_program_that_fails_says_so_in_its_records(
    how: str, code: int, status: str, said: str, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    words = [str(forked_python()), str(programs("failing.py")), str(tmp_path / "run"), how]
    environment = {**os.environ, **ONE_THREAD}
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr and ("Traceback" in ended.stderr) == (how == "error")
    if how == "mistake":  # of several calls nobody knew which
        line = f"failing.py:{line_of('run.backward(', programs('failing.py'))})"
        assert ended.stderr.rstrip().endswith(line), ended.stderr
    assert read_run(tmp_path / "run").outcome.status == status


def line_of(text: str, file: Path) -> int:
    lines = file.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.mpi
def test_a_rank_that_fails_ends_its_peers(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    ranks.mpi(3, programs("failing.py"), str(tmp_path / "run"), "error", may_fail=True)
    outcome = json.loads((tmp_path / "run" / "run.json").read_text())["outcome"]
    assert outcome == {
        "status": "failed",
        "error": "ValueError: no good",
        "rank": 2,
        "lost": [],
    }


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.mpi
@pytest.mark.parametrize("fails", [False, long(True)])
def test_a_full_disk_ends_records_and_no_training(
    command: list[str], programs: Callable[[str], Path], small_disk: Path, fails: bool
) -> None:
    """It ended with a traceback, "no rank began, or all were killed" after all but one epoch, and
    run.json said so, too."""
    words = [str(programs("full_disk.py")), str(small_disk), *(["fails"] if fails else [])]
    logs = ["--log-dir", str(small_disk / "run")]
    done = subprocess.run(
        [*command, "launch", "-n", "2", *logs, *words],
        capture_output=True,
        text=True,
        timeout=90 * PATIENCE,
        check=False,
    )
    run, ranks = small_disk / "run", range(2)
    assert (small_disk / "filled-0").exists()
    assert done.returncode == (1 if fails else 0), done.stderr
    if fails:
        assert "rank 1 failed first (exit code 1)" in done.stderr
    outcome = read_run(run).outcome
    assert outcome.status == "completed" and outcome.error is not None
    assert fails or f"phalanx: the run completed; {outcome.error}" in done.stderr
    why = f"{run / 'rank-0.jsonl'}: No space left on device"
    assert outcome.error == f"records of 2 of 2 ranks end before it: {why}"
    for rank in ranks:
        *_, notice, last = read_events(rank_file(run, rank))
        assert isinstance(notice, NoticeEvent) and isinstance(last, FinishedEvent)
        assert notice.text.startswith("records end here: ")
