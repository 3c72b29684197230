"""A program that resumes ends as if it had not stopped, on any number of ranks."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.data import Dataset

import phalanx
from phalanx.checkpoints.find import find_checkpoint, find_newest
from phalanx.checkpoints.manifest import MODEL_FILE
from phalanx.records.events import SavedEvent
from phalanx.records.files import read_events
from phalanx.run.departure import close_ended
from phalanx.run.options import Checkpoints
from phalanx.run.program import ProgramRun
from phalanx.run.samples import samples_of
from phalanx.run.source import ends_of
from tests.conftest import ONE_THREAD, Ranks, long
from tests.run.programs.checkpoints import CASES, STEPS, Rows, results

WITHIN = "epoch-0006-samples-00000048"  # step 27 of 50


def assert_close(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert (found[key] - value).abs().max() <= tolerance, key
        elif isinstance(value, list):
            assert found[key] == pytest.approx(value, rel=1e-12), key
        else:
            assert found[key] == value, key


def saving(folder: Path, case: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """The run that is broken off at step 30, of which a checkpoint of step 27 is left."""
    options = {
        "steps": 30,
        "checkpoint_dir": str(folder / case),
        "every_steps": 3,
        **options,
    }
    return case, options


def test_one_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    for case in CASES:
        _, options = saving(tmp_path, case)
        results(case, **options)
        within = sorted(path.name for path in (tmp_path / case).glob("*-samples-*"))
        assert within == [WITHIN, "epoch-0007-samples-00000032"]
        again = {"resume": str(tmp_path / case / WITHIN)}
        if case == "averaged":  # from the last, not made within an epoch
            again = {**options, "steps": STEPS, "resume": True}
        assert_close(results(case, **again), results(case), 0.0)


@pytest.mark.mpi
@pytest.mark.parametrize("sizes", [(3, 2), long((3, 4))])
def test_other_numbers_of_ranks_go_on(
    sizes: tuple[int, int], ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    program = programs("checkpoints.py")
    first, second = sizes
    runs = {f"{case} saved": saving(tmp_path, case) for case in CASES}
    ranks.mpi(first, program, str(tmp_path), json.dumps(runs))
    options: dict[str, Any] = {case: {"resume": str(tmp_path / case / WITHIN)} for case in CASES}
    again = {f"{case} again": (case, options[case]) for case in CASES}
    for strategy in ("shared", "zero"):
        again[strategy] = ("averaged", {**options["averaged"], "strategy": strategy})
    _, sharded = saving(tmp_path / "zero", "averaged", strategy="zero")
    again["zero saved"] = ("averaged", sharded)
    ranks.mpi(second, program, str(tmp_path), json.dumps(again))
    options["averaged"] = {"resume": str(tmp_path / "zero" / "averaged" / WITHIN)}
    for case in CASES:
        expected = results(case)
        assert_close(results(case, **options[case]), expected, 1e-10)
        for name in (n for n in again if again[n][0] == case and "saved" not in n):
            for rank in range(second):
                assert_close(torch.load(tmp_path / f"{name}-{rank}.pt"), expected, 1e-10)


@pytest.mark.mpi
@pytest.mark.long
def test_what_ranks_keep_for_themselves_goes_on(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    """Residuals of a compressor, and the state of ranks that train alone."""
    strategies: dict[str, dict[str, Any]] = {
        "topk": {"strategy": "mpi", "strategy_options": {"compress": "topk"}},
        "local": {"strategy": "local", "strategy_options": {"local_steps": 2}},
    }
    runs: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, options in strategies.items():
        runs[f"{name} whole"] = saving(tmp_path / "whole", "averaged", **options, steps=STEPS)
        runs[f"{name} whole"][1]["checkpoint_dir"] = str(tmp_path / "whole" / name)
        runs[f"{name} saved"] = saving(tmp_path / name, "averaged", **options)
        resume = str(tmp_path / name / "averaged" / WITHIN)
        runs[f"{name} again"] = ("averaged", {**options, "resume": resume})
        runs[f"{name} again"][1].update(
            checkpoint_dir=str(tmp_path / f"{name} again"), every_steps=3
        )
    output = ranks.mpi(2, programs("checkpoints.py"), str(tmp_path), json.dumps(runs))
    assert "is dropped" not in output
    for name in strategies:
        for rank in range(2):
            files = [tmp_path / f"{name} {run}-{rank}.pt" for run in ("again", "whole")]
            again, whole = map(torch.load, files)
            if rank:  # its averages were of the parameters that it had alone; rank 0's are saved
                again, whole = (
                    {k: v for k, v in r.items() if "model" in k} for r in (again, whole)
                )
            assert_close(again, whole, 0.0)


@pytest.mark.parametrize("strategy", ["auto", "local"])
def test_the_loss_of_an_epoch_resumed_within_it_is_that_of_all(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was that of the rest: a plateau scheduler or an early stop then trained otherwise. What
    the program counts itself lacks the first part, which was not said."""
    whole, last = loss_after(3, strategy=strategy)
    loss_after(2, strategy=strategy, checkpoint_dir=tmp_path)
    assert not capsys.readouterr().err
    assert loss_after(3, strategy=strategy, resume=tmp_path) == (whole, last)
    (line,) = capsys.readouterr().err.splitlines()
    assert "run.reduce: the run was resumed within an epoch: a value that is summed" in line


@pytest.mark.usefixtures("restored_settings")
def test_other_data_or_layers_of_the_same_shapes_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run went on in silence with another rate of dropout, or other samples."""

    def resume(rate: float, data: Any, **options: Any) -> str:
        model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(rate), nn.LeakyReLU())
        optimizer = SGD(model.parameters(), lr=0.1)
        options = {"checkpoint_dir": tmp_path / "run", "resume": True, "batch_size": 4, **options}
        train(phalanx.start(model, optimizer, data, **options))
        close_ended()
        return capsys.readouterr().out

    data = torch.randn(8, 3)
    resume(0.1, data)
    assert "no longer matches" not in resume(0.1, data.clone(), epochs=2)
    said = resume(0.5, -data, epochs=3)
    assert "has (1): Dropout(p=0.1, inplace=False) there, (1): Dropout(p=0.5, inplace" in said
    assert "the first or the last sample of the data differs" in said
    exact = {"bitwise": True, "checkpoint_dir": tmp_path / "exact"}
    resume(0.1, Listed(data), **exact)
    resume(0.1, Listed(data), **exact, epochs=2)
    for rate, other in ((0.5, data), (0.1, data.flip(0))):
        with pytest.raises(
            phalanx.UserError, match="a bitwise run resumes only with the same model"
        ):
            resume(rate, Listed(other), **exact, epochs=3)
    assert not ends_of(samples_of(Drawn(), {})), "that differ when they are read again say nothing"


class Listed(Dataset[Any]):
    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index] + torch.rand(3)


class Drawn(Listed):
    def __init__(self) -> None:
        super().__init__(torch.zeros(4, 3))

    def __getitem__(self, index: int) -> Any:
        return np.random.default_rng().random(3)


def loss_after(steps: int, **options: Any) -> tuple[float, float | None]:
    run = start(steps=steps, **options)
    train(run)
    assert run.reduce(1.0) == run.reduce(1.0)  # told once
    loss, last = run.training_loss(), run.step_loss
    run.close()
    return loss, last


# -- bad input -------------------------------------------------------------------------------------


def start(**options: Any) -> ProgramRun:
    """A run of 4 steps an epoch."""
    torch.manual_seed(0)
    model = nn.Linear(3, options.pop("width", 2))
    optimizer: Optimizer = SGD(model.parameters(), lr=options.pop("lr", 0.1), momentum=0.9)
    data = torch.randn(options.pop("samples", 16), 3)
    return phalanx.start(model, optimizer, data, **{"batch_size": 4, **options})


def train(run: ProgramRun, after_step: Callable[[int], None] = lambda _: None) -> None:
    for batch in run:
        run.backward(run.model(batch.inputs).square().mean())
        after_step(batch.step)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checkpoints": Checkpoints(every_steps=3)}, r"Checkpoints\(every_steps=3\) needs"),
        ({"checkpoint_dir": "x", "seed": -1}, "seed=-1: runs with checkpoints need a seed from 0"),
        ({"checkpoints": Checkpoints(every_seconds=3)}, r"\(every_seconds=3\) needs"),
        ({"checkpoints": Checkpoints(keep=2)}, r"\(keep=2\) needs"),
        ({"checkpoints": Checkpoints(in_thread=False)}, r"\(in_thread=False\) needs"),
        ({"resume": True}, "resume=True needs checkpoint_dir="),
        ({"resume": "auto"}, "resume='auto' needs checkpoint_dir="),
        ({"resume": "/nowhere"}, "resume=/nowhere: there is no such folder"),
        ({"resume": "/proc"}, r"resume=/proc: no checkpoint \(epoch"),
        ({"checkpoint_dir": "/proc/x"}, "checkpoint_dir=/proc/x cannot be written"),
    ],
)
def test_options_that_do_not_fit_are_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(phalanx.UserError, match=words):
        start(**options)


def test_another_program_is_told_what_differs(tmp_path: Path) -> None:
    train(start(checkpoint_dir=tmp_path))
    (saved,) = tmp_path.glob("epoch-*")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"width": 5}, r"different model: weight is \(2, 3\) there, \(5, 3\) here; bias is"),
        ({"batch_size": 8}, "different recipe: batch_size 4 there, 8 here"),
        ({"seed": 3, "lr": 0.5}, r"seed 0 there, 3 here; optimizer lr 0\.1 there, 0\.5 here"),
        ({"samples": 17}, "length of data 16 there, 17 here"),
        ({"micro_batches": 2}, "micro_batches none there, 2 here"),
    ]
    for options, words in cases:
        with pytest.raises(phalanx.UserError, match=words):
            start(resume=saved, **options)
    with pytest.raises(phalanx.UserError, match="holds the checkpoints of a run, up to epoch-0001"):
        start(checkpoint_dir=tmp_path)
    (saved / MODEL_FILE).write_bytes(b"")
    with pytest.raises(phalanx.UserError, match=r"is damaged: model\.safetensors has 0 bytes"):
        start(resume=saved)


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    run = start(checkpoint_dir=tmp_path)
    with pytest.raises(phalanx.UserError, match=r"another run is writing .* end it by run\.close"):
        start(checkpoint_dir=tmp_path)
    run.close()
    train(start(checkpoint_dir=tmp_path))


def test_a_thread_that_cannot_write_ends_the_run(tmp_path: Path) -> None:
    """Without harm to what was written before, and soon: not when the run ends."""
    folder, file, steps = tmp_path / "saved", tmp_path / "file", []
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    file.touch()
    run = start(checkpoint_dir=folder, checkpoints=Checkpoints(every_steps=1), epochs=500)

    def take_away(step: int) -> None:
        steps.append(step)
        if step == 2:
            file.replace(folder)  # at once: the thread never finds that there is nothing

    with pytest.raises(phalanx.UserError, match=r"saved/epoch-\S+ could not be written: Not a dir"):
        train(run, take_away)
    assert steps[-1] < 20
    assert find_newest(tmp_path / "elsewhere")[0] is not None


def test_so_many_are_kept_and_a_run_begins_where_all_are_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"checkpoint_dir": tmp_path / "saved", "resume": "auto"}
    keep = {"checkpoints": Checkpoints(every_steps=1, keep=2), "run_dir": tmp_path / "run"}
    train(start(**options, **keep, epochs=2))
    names = ["epoch-0001-samples-00000012", "epoch-0002"]
    assert sorted(path.name for path in (tmp_path / "saved").glob("epoch-*")) == names
    events = read_events(tmp_path / "run" / "rank-0.jsonl")
    saved = [event for event in events if isinstance(event, SavedEvent)]
    assert len(saved) == 8 and all(event.written_s is not None for event in saved)
    (tmp_path / "saved" / names[1] / MODEL_FILE).write_bytes(b"")
    steps: list[int] = []
    train(start(**options, epochs=2, checkpoints=Checkpoints(in_thread=False)), steps.append)
    assert steps == [7]
    for path in (tmp_path / "saved").glob("epoch*"):
        (path / MODEL_FILE).unlink()
    train(start(**options, epochs=1), steps.append)
    assert steps == [7, 0, 1, 2, 3]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"no checkpoint in {tmp_path / 'saved'} yet: training from the start"
    assert lines[1].startswith(f"skipped: checkpoint {tmp_path / 'saved' / names[1]} is damaged")
    assert lines[2] == f"resuming from {tmp_path / 'saved' / names[0]}"
    assert len(lines) == 6 and lines[-1] == lines[0]


def test_state_that_cannot_be_stored_is_told_soon(tmp_path: Path) -> None:
    """Not after the first epoch, which may take hours."""
    run, steps = start(checkpoint_dir=tmp_path), []

    def keep(step: int) -> None:
        steps.append(step)
        run.state["ema"] = {"x": {1, 2}}

    with pytest.raises(phalanx.UserError, match=r"run\.state\['ema'\]\['x'\] is of type set"):
        train(run, keep)
    assert steps == [0]
    run.close()


def test_a_command_may_be_repeated_until_it_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It begins where there is no checkpoint yet, and records what it saves."""
    steps: list[int] = []
    options: dict[str, Any] = {"checkpoint_dir": tmp_path / "saved", "resume": True, "epochs": 3}
    for number, limit in enumerate((6, 9, None, None)):
        train(start(**options, steps=limit, run_dir=tmp_path / f"{number}"), steps.append)
    assert steps == list(range(12))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"no checkpoint in {tmp_path / 'saved'} yet: training from the start"
    assert lines[1] == f"resuming from {tmp_path / 'saved' / 'epoch-0001-samples-00000008'}"
    assert lines[-1].endswith("has done 3 epochs, all that were requested: nothing is left")
    saved = [
        Path(event.path).name
        for number in range(4)
        for event in read_events(tmp_path / f"{number}" / "rank-0.jsonl")
        if isinstance(event, SavedEvent)
    ]
    assert saved == [
        "epoch-0001", "epoch-0001-samples-00000008", "epoch-0002", "epoch-0002-samples-00000004",
        "epoch-0003",
    ]  # fmt: skip


def test_a_stream_that_ended_with_the_run_goes_on_in_its_next_epoch(tmp_path: Path) -> None:
    """`steps` ended the run where the stream ended, too."""
    for steps in (2, 3):
        model = nn.Linear(3, 2)
        optimizer = SGD(model.parameters(), lr=0.1)
        options: dict[str, Any] = {"checkpoint_dir": tmp_path, "resume": True, "epochs": 2}
        data = Rows(torch.ones(8, 3))
        train(phalanx.start(model, optimizer, data, batch_size=4, steps=steps, **options))
    assert {path.name for path in tmp_path.glob("epoch*")} == {
        "epoch-0001", "epoch-0001-samples-00000004"
    }  # fmt: skip


# -- sudden ends -----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_kill_while_it_saves_leaves_the_last_one_whole(
    tmp_path: Path, programs: Callable[[str], Path]
) -> None:
    folder = tmp_path / "averaged"
    options = {
        "checkpoint_dir": str(folder),
        "every_steps": 1,
        "resume": True,
    }
    words = (
        str(programs("checkpoints.py")),
        str(tmp_path),
        json.dumps({"a": ("averaged", options)}),
    )
    reached = 0
    for pause in (0.0, 0.002, 0.005):
        process = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **ONE_THREAD, "RANK": "0", "WORLD_SIZE": "1"},
            cwd=Path(__file__).parents[2],
        )
        began = time.monotonic()
        known = set(folder.glob("epoch-*"))
        while process.poll() is None and time.monotonic() < began + 60:
            if set(folder.glob("epoch-*")) - known and next(folder.glob(".epoch-*.new"), None):
                time.sleep(pause)
                process.send_signal(signal.SIGKILL)
        process.wait()
        found = find_checkpoint(folder)
        step = json.loads((found.path / "program.json").read_text())["step"]
        assert step > reached, "each start goes on"
        reached = step
    expected = results("averaged")
    assert_close(results("averaged", **options), expected, 0.0)
