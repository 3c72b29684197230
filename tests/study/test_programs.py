"""The scaling study of a user's program: its runs, and the records that they leave."""

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.cli.program_words import separate_program
from phalanx.errors import RunFailedError, UserError
from phalanx.report.folder import read_folder
from phalanx.study.epoch_lines import EpochLines, ProgramConfig
from phalanx.study.programs import ProgramTraining, file_state, program_runs
from phalanx.study.scaling import ScalingConfig

BY_PHALANX = """
import sys, torch, phalanx
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = phalanx.start(model, optimizer, torch.ones(40, 4), batch_size=8, epochs=int(sys.argv[1]))
for batch in run:
    run.backward(run.model(batch.inputs).square().mean())
"""
BY_LINES = """
import time
for epoch in range(3):
    print(f"epoch {epoch} loss {1 / (epoch + 1)} in 0.5 s, 1,000 samples")
"""


def config_of(words: tuple[str, ...], pattern: str | None = None) -> ProgramConfig:
    return ProgramConfig(
        words=words, strategy="sequential", ranks=1, threads=1, seed=3, epoch_pattern=pattern
    )


def made(config: ProgramConfig, folder: Path) -> Path:
    run = ProgramTraining(name="run", config=config)
    run.make(folder, study="study", console=Console(quiet=True), label="")
    return folder


def test_runs_are_made_seed_after_seed(tmp_path: Path) -> None:
    program = tmp_path / "my train.py"
    program.write_text(BY_PHALANX)
    study = ScalingConfig(seeds=(0, 1), ranks=(2,), threads=(1,), strategies=("sequential", "mpi"))
    runs = program_runs(study, f"'{program}' --epochs 3", None, cores=2)
    assert [run.name for run in runs] == [
        "my-train-sequential-1t-s0", "my-train-mpi-2x1-s0",
        "my-train-sequential-1t-s1", "my-train-mpi-2x1-s1",
    ]  # fmt: skip
    assert runs[1].config.words == (str(program), "--epochs", "3")
    before = file_state(f"'{program}'")
    program.write_text(BY_LINES)
    assert before != file_state(f"'{program}'") != ""


@pytest.mark.parametrize(
    ("study", "words", "pattern", "message"),
    [
        (ScalingConfig(lr=0.5), "a.py", None, "--lr is for the built-in models"),
        (ScalingConfig(device="cuda"), "a.py", None, "--device is for the built-in models"),
        (ScalingConfig(strategies=("tensor",)), "a.py", None, "tensor needs the layers"),
        (ScalingConfig(), " ", None, "--program needs a program"),
        (ScalingConfig(), "a.py", "(", r"--epoch-pattern '\(' is not a regular expression"),
    ],
)
def test_options_that_do_not_fit(
    study: ScalingConfig, words: str, pattern: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        program_runs(study, words, pattern, cores=2)


def test_what_follows_program_is_one_word() -> None:
    words = ["study", "scaling", "--ranks", "2", "--program", "a b.py", "--epochs", "3"]
    assert separate_program(words) == [*words[:5], "'a b.py' --epochs 3"]
    whole = ["study", "scaling", "--program", "a.py --epochs 3"]
    assert separate_program(whole) == whole


def test_a_program_on_phalanx_leaves_its_records(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(BY_PHALANX)
    folder = made(config_of((str(program), "2")), tmp_path / "run")
    (measure,) = read_folder(folder).runs
    assert measure.setting is not None
    assert (measure.setting.seed, measure.setting.strategy) == (3, "sequential")
    assert [epoch.samples for epoch in measure.trained] == [40, 40]


def test_lines_of_a_program_are_its_epochs(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(BY_LINES)
    pattern = r"loss (?P<loss>\S+) in (?P<seconds>\S+) s, (?P<samples>\S+)"
    folder = made(config_of((str(program),), pattern), tmp_path / "run")
    (measure,) = read_folder(folder).runs
    assert [(epoch.epoch_s, epoch.samples) for epoch in measure.trained] == [(0.5, 1000)] * 3
    losses = [event.metrics["loss"] for event in measure.ranks[0].metrics]
    assert losses == pytest.approx([1, 1 / 2, 1 / 3])
    assert measure.step_parts_s is None and measure.trained[0].train_accuracy is None


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (None, "the program wrote no records"),
        ("nothing", "finds no line in the output of rank 0"),
        ("epoch", "too short to be timed by output lines"),
    ],
)
def test_a_program_without_epochs_fails(pattern: str | None, message: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(BY_LINES)
    with pytest.raises(RunFailedError, match=message):
        made(config_of((str(program),), pattern), tmp_path / "run")


def test_lines_may_come_in_parts() -> None:
    lines, seen = EpochLines("epoch"), list[str]()
    lines.on_line = seen.append
    for part in (b"epo", b"ch 1\nep", b"och 2\r\nrest"):
        lines.write(part)
    assert seen == ["epoch 1", "epoch 2"]


@pytest.mark.mpi
@pytest.mark.long
def test_a_study_of_a_program_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BY_PHALANX)
    words = ["study", "scaling", "--seeds", "0", "--threads", "1", "--program", "train.py", "3"]
    command = [sys.executable, "-m", "phalanx", *words]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "train-mpi-2x1-s0" in ended.stdout and "train-gloo-2x1-s0" in ended.stdout
    (study,) = (tmp_path / "runs").iterdir()
    assert (study / "report.html").exists()
