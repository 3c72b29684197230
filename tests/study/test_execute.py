"""A study's folder holds runs of one set of options, or says what differs."""

import errno
import os
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from phalanx.cli.study import measure_algorithms
from phalanx.errors import UserError
from phalanx.records.files import read_study, write_record
from phalanx.records.schema import Run
from phalanx.study import execute as steps
from phalanx.study.execute import PreparedStudy, open_study
from phalanx.study.run import TrainingRun
from phalanx.train.config import TrainConfig
from tests.report.collectives.made_bench import make_bench

CONFIG = TrainConfig.from_options(epochs=2, lr=0.001, train_samples=1_000, timeout_s=300)


def planned(**changed: object) -> list[TrainingRun]:
    config = TrainConfig.from_options(**{**CONFIG.options(), **changed})
    return [
        TrainingRun(name=name, config=replace(config, threads=threads))
        for name, threads in (("one", 1), ("two", 2))
    ]


def opened(
    folder: Path, data: str = "digits", command: str = "phalanx new", **changed: object
) -> None:
    runs = planned(**changed)
    open_study(PreparedStudy(kind="scaling", folder=folder, runs=runs, data=[data]), command)


def test_the_plan_is_written_with_every_option_once(tmp_path: Path) -> None:
    opened(tmp_path)
    study = read_study(tmp_path)
    assert study.configurations == {"one": {"threads": 1}, "two": {"threads": 2}}
    assert (study.common["epochs"], study.common["lr"], study.common["data found"]) == (
        (2, 0.001, ["digits"])
    )
    assert not {"timeout_s", "run_dir"} & set(study.common)
    opened(tmp_path)  # the same again


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"epochs": 50, "lr": 0.3}, "--epochs 2, now 50; --lr 0.001, now 0.3"),
        ({"train_samples": 8_000}, "--train-samples 1000, now 8000"),
        ({"strategy": "mpi", "compress": "topk"}, "--compress none, now topk"),
        ({"lr_schedule": "step", "lr_milestones": (0.1,)}, "--lr-milestones 0.5 0.75, now 0.1"),
        ({"data": "mnist"}, "data found digits, now mnist"),
    ],
)
def test_other_options_are_refused_and_named(
    changed: dict[str, object], told: str, tmp_path: Path
) -> None:
    """Runs of 1,000 and of 8,000 samples stood in one table, with a speed-up of 0.39."""
    opened(tmp_path)
    before = (tmp_path / "study.json").read_bytes()
    with pytest.raises(UserError, match=told) as caught:
        opened(tmp_path, **changed)  # type: ignore[arg-type]
    assert "--study-dir" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2
    assert (tmp_path / "study.json").read_bytes() == before


def test_only_another_command_is_named_to_go_on_with(tmp_path: Path) -> None:
    """With defaults that had changed, the command to go on with was the one just refused."""
    opened(tmp_path, command="phalanx old")
    with pytest.raises(UserError, match="`phalanx new`, or resume with `phalanx old`"):
        opened(tmp_path, lr=0.3)
    with pytest.raises(UserError, match="`phalanx old`: the same command had other defaults"):
        opened(tmp_path, command="phalanx old", lr=0.3)


def test_where_things_are_kept_and_patience_may_change(tmp_path: Path) -> None:
    opened(tmp_path)
    opened(tmp_path, timeout_s=10, data_root=tmp_path, checkpoint_dir=tmp_path)


def test_a_study_of_an_older_phalanx_is_not_gone_on_with(tmp_path: Path) -> None:
    opened(tmp_path)
    write_record(tmp_path, msgspec.structs.replace(read_study(tmp_path), configurations={}))
    with pytest.raises(UserError, match="older Phalanx"):
        opened(tmp_path)


def test_a_damaged_plan_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(UserError, match=r"study.json is damaged.*--study-dir"):
        opened(tmp_path)


def test_what_every_run_refuses_is_refused_before_the_first(tmp_path: Path) -> None:
    """36 runs were begun, each of which failed: a batch of 32 over 4,096 ranks."""
    impossible = {"strategy": "mpi", "ranks": 100, "batch_size": 32}
    with pytest.raises(UserError, match=r"none of the 2 runs can start: --batch-size 32 is"):
        opened(tmp_path, **impossible)  # type: ignore[arg-type]
    assert not (tmp_path / "study.json").exists()


def test_one_run_that_can_be_made_is_enough(tmp_path: Path) -> None:
    good, bad = planned()
    config = TrainConfig.from_options(
        **{**bad.config.options(), "strategy": "mpi", "ranks": 100, "batch_size": 32}
    )
    runs = [TrainingRun(name="bad", config=config), good]
    open_study(PreparedStudy(kind="scaling", folder=tmp_path, runs=runs), "phalanx new")
    assert read_study(tmp_path).runs == ["bad", "one"]


@pytest.mark.parametrize("option", ["train_samples", "validation_samples"])
def test_a_negative_number_of_samples_is_refused(option: str) -> None:
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} must be positive"):
        planned(**{option: -9999999999999999999999})


@dataclass(frozen=True)
class MadeRun:
    """A run whose `make` raises `error`, if there is one."""

    name: str
    error: Exception | None = None
    record = Run

    def make(self, folder: Path, **_: object) -> None:
        folder.mkdir()
        if self.error is not None:
            raise self.error


def test_a_full_disk_ends_one_run_and_not_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(steps, "probe", lambda _: None)
    monkeypatch.setattr(steps, "_record_result", lambda *_: "made")
    runs = [MadeRun("a", full), MadeRun("b")]
    assert steps.execute(tmp_path, runs, Console(width=200)) == 1  # type: ignore[arg-type]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a", "b"]
    assert "a  failed: [Errno 28] No space left" in capsys.readouterr().out
    monkeypatch.setattr("phalanx.cli.study.run_bench", raise_full)
    assert measure_algorithms(tmp_path, 2, 1.0, Console()) == 1
    make_bench(tmp_path / "algorithms" / "ranks-2", config={"seconds": 1.0})
    assert measure_algorithms(tmp_path, 2, 1.0, Console()) == 0, "measured already"
    assert measure_algorithms(tmp_path, 2, 2.0, Console()) == 1, "of another number of seconds"
    monkeypatch.setattr("phalanx.cli.study.set_aside", raise_full)
    assert measure_algorithms(tmp_path, 2, 1.0, Console()) == 1


def raise_full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
