"""Reading result folders: whole, incomplete and damaged."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from phalanx.errors import UserError
from phalanx.records.events import SummaryEvent
from phalanx.records.files import EventWriter, rank_file, read_run, record_file
from phalanx.records.schema import Restart, Run
from phalanx.report.folder import newest_folder, read_folder
from phalanx.report.page import write_report
from tests.report.made_study import Job, make_run, make_study
from tests.report.made_view import read


def test_every_run_of_the_plan_has_a_status(troubled: Path) -> None:
    status = {run.name: run.status for run in read_folder(troubled).runs}
    assert list(status.values()) == ["completed"] * 3 + ["failed", "interrupted", "missing"]


def test_a_run_that_was_cut_in_a_line_keeps_its_whole_epochs(troubled: Path) -> None:
    cut = read_folder(troubled).runs[4]
    assert cut.status == "interrupted"
    assert [epoch.epoch for epoch in cut.trained] == [0, 1]
    assert cut.trained[-1].validation_loss is None  # what the cut line of rank 1 held


def cells_of(folder: Path) -> list[dict[str, object]]:
    return [dict(row) for row in read(folder)[1][0].frame("cells")]


def test_only_completed_runs_are_compared(troubled: Path) -> None:
    assert [row["configuration"] for row in cells_of(troubled)] == [
        "sequential, 1 thread",
        "mpi, 1 rank",
        "mpi, 2 ranks",
    ]


def test_a_single_run_is_a_study_of_one(alone: Path) -> None:
    measures = read_folder(alone)
    assert (measures.study.kind, len(measures.runs)) == ("train", 1)
    assert measures.study.command == "phalanx train --model cnn --strategy mpi --seed 0"


def test_a_folder_of_loose_runs(tmp_path: Path) -> None:
    for ranks in (1, 2):
        make_run(tmp_path / f"run-{ranks}", Job("mlp", "mpi", ranks=ranks))
    assert [run.status for run in read_folder(tmp_path).runs] == ["completed"] * 2


def test_a_damaged_run_of_a_study_is_shown_not_fatal(tmp_path: Path) -> None:
    jobs = [Job("mlp", "sequential"), Job("mlp", "mpi", ranks=2), Job("mlp", "gloo", ranks=2)]
    folder = make_study(tmp_path / "s", jobs)
    (folder / jobs[1].name / "run.json").write_text("{")
    rank_file(folder / jobs[2].name, 1).unlink()
    damaged = read_folder(folder).runs[1:]
    assert [run.status for run in damaged] == ["damaged", "damaged"]
    assert "run.json is damaged" in str(damaged[0].error)
    assert "no records of ranks [1]" in str(damaged[1].error)


def test_a_run_without_the_records_of_other_nodes_is_drawn(tmp_path: Path) -> None:
    """Nodes that share no folder keep their own: `completed, but has no records of ranks [1]`."""
    folder = make_run(tmp_path / "run", Job("mlp", "mpi", ranks=2))
    whole = read_folder(folder).runs[0]
    writer = EventWriter(tmp_path / "summaries.jsonl")
    for epoch in whole.trained:
        writer.add(
            SummaryEvent(
                at_s=1.0,
                epoch=epoch.epoch,
                epoch_s=epoch.epoch_s,
                trained_s=epoch.trained_s,
                images_per_s=epoch.samples / epoch.epoch_s,
                communication_share=0.1,
                train_loss=epoch.train_loss or 0.0,
                train_accuracy=epoch.train_accuracy or 0.0,
                validation_loss=epoch.validation_loss or 0.0,
                validation_accuracy=epoch.validation_accuracy or 0.0,
            )
        )
    writer.close()
    *lines, last = rank_file(folder, 0).read_text().splitlines(keepends=True)
    summaries = (tmp_path / "summaries.jsonl").read_text()
    rank_file(folder, 0).write_text("".join([*lines, summaries, last]))
    rank_file(folder, 1).unlink()
    measures = read_folder(folder)
    (run,) = measures.runs
    assert (run.status, run.unseen, run.trained) == ("completed", (1,), whole.trained)
    assert (run.epoch_s, run.images_per_s) == (whole.epoch_s, whole.images_per_s)
    assert (run.communication_share, run.step_parts_s, run.processor_s) == (None, None, None)
    text = write_report(folder).read_text()
    assert "Records of 1 rank (1) are missing" in text
    assert len(cells_of(tmp_path)) == 1, "among loose runs it is compared"
    rank_file(folder, 0).unlink()
    with pytest.raises(UserError, match=r"no records of ranks \[0, 1\]"):
        read_folder(folder)


def test_a_line_in_the_middle_that_is_no_record(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", Job("mlp", "sequential"))
    lines = rank_file(folder, 0).read_text().splitlines(keepends=True)
    rank_file(folder, 0).write_text("".join([lines[0], "nonsense\n", *lines[1:]]))
    with pytest.raises(UserError, match="line 2 is not a record"):
        read_folder(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "study.json is damaged"), ('{"schema": 99}', "study.json")],
)
def test_a_damaged_study(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_folder(tmp_path)


def test_folders_without_records(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither study\.json nor run\.json"):
        read_folder(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        read_folder(tmp_path / "nowhere")


def test_the_newest_study_or_run(tmp_path: Path, alone: Path) -> None:
    with pytest.raises(UserError, match="no study or run found under"):
        newest_folder(tmp_path)
    study = make_study(tmp_path / "study", [Job("mlp", "sequential")])
    run = shutil.copytree(alone, tmp_path / "train" / "run")
    os.utime(study / "study.json", (1000, 1000))
    os.utime(run / "run.json", (2000, 2000))
    assert newest_folder(tmp_path) == run
    os.utime(study / "study.json", (3000, 3000))
    assert newest_folder(tmp_path) == study


def halve(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))


def double(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    """In its last line, as a killed process leaves it."""
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (halve, "rank-1.jsonl ends before the run did"),
        (cut, "rank-1.jsonl ends before the run did"),
        (empty, "rank-1.jsonl is empty"),
        (double, "rank-1.jsonl has the end of the run 2 times"),
    ],
)
def test_half_the_records_of_a_completed_run_are_no_run(
    damage: Callable[[Path], None], told: str, tmp_path: Path
) -> None:
    """Half a file was drawn as a whole: an epoch of 1.89 s in place of 1.77 s, and no word."""
    jobs = [Job("mlp", "sequential"), Job("mlp", "mpi", ranks=2)]
    folder = make_study(tmp_path / "s", jobs)
    damage(rank_file(folder / jobs[1].name, 1))
    measures = read_folder(folder)
    assert [run.status for run in measures.runs] == ["completed", "damaged"]
    assert told in str(measures.runs[1].error)
    assert [row["strategy"] for row in cells_of(folder)] == ["sequential"]
    with pytest.raises(UserError, match=f"is damaged: {told}"):
        read_folder(folder / jobs[1].name)


def test_ranks_that_crash_after_the_end_are_started_again(tmp_path: Path) -> None:
    """Open MPI crashed in the last ranks of a run that had ended, and its folder was damaged."""
    folder = make_run(tmp_path / "run", Job("mlp", "mpi", ranks=2))
    again = make_run(folder / "restart-1", Job("mlp", "mpi", ranks=2))
    started = Restart(
        folder=again.name, lost_at="", restarted_at="", reason="crashed", steps=1, ranks=2
    )
    run = msgspec.structs.replace(read_run(folder), restarts=[started])
    record_file(folder, Run).write_bytes(msgspec.json.encode(run))
    assert [run.status for run in read_folder(folder).runs] == ["completed"]


@pytest.mark.parametrize("name", ["rank-0.jsonl", "run.json", "study.json"])
@pytest.mark.timeout(60)
def test_what_is_no_file_is_not_read(name: str, tmp_path: Path) -> None:
    """Reading a pipe that nobody writes to never ends, nor does reading /dev/zero."""
    folder = make_study(tmp_path / "s", [Job("mlp", "sequential")])
    path = folder / name if name == "study.json" else folder / "mlp-sequential-t1-b128-s0" / name
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        path.unlink()
        make(path)
        if name == "study.json":
            with pytest.raises(UserError, match=r"study.json cannot be read: Not a regular file"):
                read_folder(folder)
        else:
            (run,) = read_folder(folder).runs
            assert run.status == "damaged"
            assert f"{name} cannot be read: Not a regular file" in str(run.error)
