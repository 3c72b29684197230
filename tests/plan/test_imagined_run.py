"""Imagined runs in the readers of real ones, and beside real ones."""

import json
import os
import subprocess
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from statistics import median

import msgspec
import pytest
import torch
from rich.console import Console

from phalanx.cli.compare import compare
from phalanx.cli.trace import trace
from phalanx.cli.train_options import RunOptions
from phalanx.errors import UserError
from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelOptions, completed
from phalanx.parallel.options import StrategyOptions
from phalanx.parallel.program_costs import ReadyGradients
from phalanx.plan.imagined_run import TRACED_RANKS, write_imagined_run
from phalanx.plan.predict import Target
from phalanx.plan.profile import Gradient, ProgramProfile, StepTimes
from phalanx.records.events import ActionEvent, StepEvent
from phalanx.records.files import rank_file, read_events
from phalanx.report.build import content_of
from phalanx.report.trace.read import read_traces
from phalanx.report.trace.show import show_trace
from tests.conftest import ONE_THREAD
from tests.plan.made_profile import layered_profile, machine, profile
from tests.report.made_study import Job, make_run
from tests.report.made_view import rows_of

HPC = Target(machine=machine(), ranks_per_node=2, is_same_processor=False)


def imagined(folder: Path, ranks: int, target: Target = HPC) -> Path:
    write_imagined_run(folder, profile(), target, ranks, command="phalanx plan")
    return folder


def test_a_report_shows_its_times_and_says_that_it_is_planned(tmp_path: Path) -> None:
    content = content_of(imagined(tmp_path / "ranks-4", 4))
    assert "MPI (planned) on 4 ranks over 2 nodes" in content.headline
    assert content.lead.startswith("0 of 1 run completed, 1 planned and not run, ")
    assert "4 cores" not in content.lead and "another processor" in content.lead
    told = [text for _, text in content.conditions]
    assert told[0].startswith("Planned, not run: an epoch of 10 steps, all figures predicted")
    assert not [text for text in told if text.startswith("Not completed")]
    (runs,) = [rows_of(table) for table in content.tables if table.title == "Runs"]
    (row,) = runs
    assert row["status"] == "· planned, not run"
    assert row["strategy"] == "mpi (planned)"
    assert row["loss"] == row["accuracy"] == "–", "none was predicted"
    assert float(row["epoch (s)"]) > 0
    drawn = {figure.name.rpartition("-")[0] for figure in content.figures}
    assert {"step", "overlap"} <= drawn
    assert not drawn & {"train-loss", "loss", "accuracy"}


def test_it_is_no_rival_of_runs_that_were_made(tmp_path: Path) -> None:
    """Beside a real run it has a row of its own, and neither is compared with the other."""
    make_run(tmp_path / "real", Job("mlp", "sequential", ranks=1))
    imagined(tmp_path / "imagined", 1)
    content = content_of(tmp_path)
    names = {row["configuration"] for row in content.views[0].frame("cells")}
    assert names == {"sequential, 1 thread", "sequential (planned), 1 rank"}
    assert all(len(panel.cells) == 1 for panel in content.views[0].panels)
    assert "1 of 2 runs completed, 1 planned and not run" in content.lead


def test_a_trace_keeps_the_first_ranks_and_says_so(tmp_path: Path) -> None:
    ranks = TRACED_RANKS + 4
    folder, printed = imagined(tmp_path / "many", ranks), StringIO()
    assert read_traces(folder).gaps == [
        ("ranks 8 to 11", "a plan keeps the spans of its first ranks alone")
    ]
    show_trace(folder, Console(file=printed, width=200))
    text = printed.getvalue()
    assert "planned, not run: all times are predictions of phalanx plan" in text
    assert "ranks 8 to 11 are not in the trace" in text
    assert f"trace of {TRACED_RANKS} ranks" in text
    about = json.loads((folder / "trace.json").read_bytes())["otherData"]
    assert about["status"].startswith("planned, not run")
    assert about["missing ranks"].startswith("ranks 8 to 11: a plan")


def test_it_has_no_bits_to_compare(tmp_path: Path) -> None:
    folder = imagined(tmp_path / "two", 2)
    with pytest.raises(UserError, match="is planned, not run, and has no bits to compare"):
        compare(folder, folder)


def test_a_trace_that_is_shown_takes_no_options(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="takes no other options"):
        trace(imagined(tmp_path / "two", 2), steps=5)
    with pytest.raises(UserError, match="holds no trace"):
        trace(make_run(tmp_path / "real", Job("mlp", "mpi", ranks=2)), options=RunOptions())


# -- Beside real runs ------------------------------------------------------------------------------


def run_really(command: Sequence[str], folder: Path, *words: str) -> Path:
    done = subprocess.run(
        [*command, "trace", "--dataset", "digits", "--threads", "1", "--ranks", "2",
         "--validation-samples", "64", "--run-dir", str(folder), "--no-preflight", *words],
        capture_output=True, text=True, timeout=100, env={**os.environ, **ONE_THREAD},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def gradients_of(width: int) -> list[Gradient]:
    """Return the gradients of an MLP in the order of one backward pass."""
    options = completed("mlp", ModelOptions(width=width))
    network = build_model("mlp", seed=0, options=options, shape=DataShape())
    ready = ReadyGradients(network)
    network(torch.ones(8, 1, 28, 28)).sum().backward()
    ready.end_step(1.0)
    return [Gradient(bytes=int(each["bytes"]), ready=each["ready"]) for each in ready.close()]


def as_it_ran(folder: Path, found: ProgramProfile, samples: int) -> ProgramProfile:
    """Return a profile with the times of a real run's records."""
    ranks = [[e for e in read_events(rank_file(folder, r)) if isinstance(e, StepEvent)]
             for r in range(2)]  # fmt: skip
    parts = {
        name: median(getattr(step, name) for rank in ranks for step in rank)
        for name in ("data_s", "forward_s", "backward_s", "optimizer_s")
    }
    took = [[sum(getattr(step, name) for name in parts) for step in rank] for rank in ranks]
    times = [StepTimes(at_once=k, samples=samples, step_s=took[:k], **parts) for k in (1, 2)]
    return msgspec.structs.replace(found, times=times, global_batch=2 * samples)


def beside(real: Path, found: ProgramProfile, **options: object) -> Path:
    folder = real.with_name("imagined")
    chosen = StrategyOptions(**options)  # type: ignore[arg-type]
    target = Target(machine=None, ranks_per_node=2, options=chosen)
    write_imagined_run(folder, found, target, 2, command="")
    return folder


def steps_of(folder: Path, rank: int) -> list[list[tuple[str, float]]]:
    """Return the buckets and collectives of each step with their bytes, in order of time. A step
    ends with the sum of its loss; what ranks tell each other once in a while is left out."""
    steps: list[list[tuple[str, float]]] = [[]]
    for span in read_traces(folder).ranks[rank].spans:
        name, detail = span.name.rpartition(" "), span.detail or {}
        if name[0] == "bucket":
            steps[-1].append((span.name, float(detail["bytes"])))
        elif name[0] == "all_reduce" and (detail["group"], detail["bytes"]) == ("world", 16):
            steps[-1].append(("loss", 16.0))
            steps.append([])
        elif name[0] == "all_reduce" and detail["group"] == "gradients":
            steps[-1].append(("all_reduce", float(detail["bytes"])))
    return steps


@pytest.mark.mpi
def test_buckets_and_collectives_come_in_the_order_of_a_real_run(
    command: list[str], tmp_path: Path
) -> None:
    """Data parallel over an emulated link, with overlap."""
    link, width = "1Gbit/s,1ms", 1024
    words = ("--strategy", "mpi", "--overlap", "on", "--link", link, "--width", str(width))
    real = run_really(command, tmp_path / "real", *words, "--batch-size", "128")
    gradients = gradients_of(width)
    values = sum(gradient.bytes for gradient in gradients) // 4
    found = msgspec.structs.replace(profile(parameters=values), gradients=gradients)
    found = as_it_ran(real, found, 64)
    planned = beside(real, found, strategy="mpi", overlap="on", link=link)
    for rank in range(2):
        ours, theirs = steps_of(planned, rank)[4], steps_of(real, rank)[4]
        assert len([name for name, _ in theirs if name.startswith("bucket")]) > 2
        assert ours == theirs


@pytest.mark.mpi
def test_actions_come_in_the_order_of_a_real_pipeline(command: list[str], tmp_path: Path) -> None:
    words = ("--strategy", "pipeline", "--micro-batches", "4", "--batch-size", "128")
    real = run_really(command, tmp_path / "real", *words)
    found = as_it_ran(real, layered_profile(), 128)
    planned = beside(real, found, strategy="pipeline", micro_batches=4)
    for rank in range(2):
        ours, theirs = (
            [event for event in read_events(rank_file(folder, rank))
             if isinstance(event, ActionEvent)]
            for folder in (planned, real)
        )  # fmt: skip
        names = [
            [(e.kind, e.stage, e.micro_batch) for e in each if e.step == each[0].step]
            for each in (ours, theirs)
        ]
        assert len(names[1]) == 8
        assert names[0] == names[1]
        drawn = [
            [span.name for span in read_traces(folder).ranks[rank].spans
             if "micro-batch" in (span.detail or {})][:8]
            for folder in (planned, real)
        ]  # fmt: skip
        assert drawn[0] == drawn[1]
