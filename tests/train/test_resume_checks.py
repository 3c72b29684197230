"""What a run may resume from: the newest complete checkpoint, of its own recipe, or it is told."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from phalanx.checkpoints import program_recipe
from phalanx.checkpoints.find import (
    FoundCheckpoint,
    Retention,
    check_checkpoint_dir,
    find_checkpoint,
    find_newest,
    find_to_resume,
)
from phalanx.checkpoints.manifest import (
    MANIFEST,
    MODEL_FILE,
    Manifest,
    folder_name,
)
from phalanx.checkpoints.program_recipe import check_program, is_same_recipe
from phalanx.errors import UserError
from phalanx.train import resume
from phalanx.train.as_options import as_options
from phalanx.train.config import TrainConfig
from phalanx.train.resume import allowed_changes, nothing_to_do, recipe_of, restarts_schedule
from phalanx.train.run import complete, folder_of
from phalanx.train.session import _schedule_start
from tests.checkpoints.test_manifest import save
from tests.data.packs import make_pack

CONFIG = TrainConfig.from_options(dataset="digits", ranks=1)


def save_at(folder: Path, epochs: int, samples: int = 0, **others: Any) -> Path:
    return save(folder, epochs_done=epochs, samples_seen=samples, **others)


# -- which one ---------------------------------------------------------------------------------


def test_the_newest_is_the_one_that_has_seen_most_samples(tmp_path: Path) -> None:
    """Not the last by name: after another batch size, and after epoch 9999."""
    for samples in (4_000, 6_000, 12_000, 14_000, 100_000_000):
        expected = save_at(tmp_path, 0, samples)
        assert find_checkpoint(tmp_path).path == expected
    for epochs in (1, 9_999, 10_000):
        expected = save_at(tmp_path, epochs)
        assert find_checkpoint(tmp_path).path == expected
    assert save_at(tmp_path, 2).is_dir()
    assert find_checkpoint(tmp_path).path == expected
    assert find_checkpoint(expected).path == expected


def test_of_several_runs_it_is_the_one_that_saved_last(tmp_path: Path) -> None:
    save_at(tmp_path, 5, run="first", saved_at=10.0)
    expected = save_at(tmp_path, 2, run="second", saved_at=20.0)
    assert find_checkpoint(tmp_path).path == expected


def test_a_damaged_one_is_passed_over_and_named(tmp_path: Path) -> None:
    for epochs in (1, 2, 3, 4):
        save_at(tmp_path, epochs)
    (tmp_path / folder_name(4) / MANIFEST).unlink()
    (tmp_path / folder_name(3) / MODEL_FILE).write_bytes(b"WEIGHTS")
    (tmp_path / folder_name(1) / MODEL_FILE).write_bytes(b"older, of no interest")
    found = find_checkpoint(tmp_path)
    assert found.path == tmp_path / folder_name(2)
    missing, flipped = sorted(found.skipped, key=lambda line: "manifest.json" not in line)
    assert missing == f"skipped: checkpoint {tmp_path / folder_name(4)} has no manifest.json"
    assert "epoch-0003 is damaged: model.safetensors does not match the SHA-256" in flipped
    with pytest.raises(UserError, match=r"epoch-0003 is damaged: model\.safetensors"):
        find_checkpoint(tmp_path / folder_name(3))  # asked for by name
    shutil.rmtree(tmp_path / folder_name(2))
    with pytest.raises(UserError, match=r"no complete checkpoint in it: .*epoch-0004 has no mani"):
        find_checkpoint(tmp_path)


def test_many_that_are_passed_over_take_a_few_lines(tmp_path: Path) -> None:
    """5,000 empty folders filled the terminal with 5,000 lines."""
    valid = save_at(tmp_path, 1)
    for epoch in range(2, 202):
        (tmp_path / folder_name(epoch)).mkdir()
    found, lines = find_newest(tmp_path)
    assert found is not None and found.path == valid
    assert len(lines) == 6 and lines == [*found.skipped]
    assert lines[0] == "skipped: 195 older checkpoints"
    assert f"{folder_name(201)} has no {MANIFEST}" in lines[-1]


def test_one_set_aside_counts_while_its_successor_is_missing(tmp_path: Path) -> None:
    save_at(tmp_path, 1)
    aside = tmp_path / ".epoch-0002.old"
    save_at(tmp_path, 2).rename(aside)
    shutil.copytree(aside, tmp_path / ".epoch-0003.new")  # never published
    found = find_checkpoint(tmp_path)
    assert (found.path, found.manifest.epochs_done) == (aside, 2)
    newer = save_at(tmp_path, 2)
    assert find_checkpoint(tmp_path).path == newer


def test_the_checkpoint_just_written_stays_whatever_the_clock_says(tmp_path: Path) -> None:
    """Of those within epochs two stay: the newest, and of the others the one that was saved last.
    Those of whole epochs all do."""
    save_at(tmp_path, 1, saved_at=50.0)
    (tmp_path / folder_name(0, 1_000)).mkdir()  # damaged
    for samples, saved_at in ((20_000, 10.0), (4_000, 30.0), (6_000, 20.0)):  # two batch sizes
        save_at(tmp_path, 0, samples, saved_at=saved_at)
    newest = save_at(tmp_path, 0, 8_000, saved_at=5.0)  # the clock was set back
    Retention(tmp_path, None).remove_older(newest)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {folder_name(1), folder_name(0, 4_000), newest.name}


def test_a_checkpoint_of_an_epoch_removes_none_within_epochs(tmp_path: Path) -> None:
    within = {save_at(tmp_path, 0, samples, saved_at=samples) for samples in (100, 200)}
    Retention(tmp_path, None).remove_older(save_at(tmp_path, 1))
    assert within <= set(tmp_path.iterdir())


def test_the_newest_valid_ones_are_kept(tmp_path: Path) -> None:
    """Of epochs and within them; a damaged one does not count, and goes with the older ones."""
    retention = Retention(tmp_path, 2)
    older = [save_at(tmp_path, 0, 100, saved_at=1.0), save_at(tmp_path, 1, saved_at=2.0)]
    damaged = save_at(tmp_path, 1, 100, saved_at=3.0)
    (damaged / MODEL_FILE).write_bytes(b"")
    retention.remove_older(first := save_at(tmp_path, 2, saved_at=4.0))
    assert set(tmp_path.iterdir()) == {first, damaged, older[1]}
    retention.remove_older(second := save_at(tmp_path, 2, 100, saved_at=5.0))
    assert set(tmp_path.iterdir()) == {first, second}


def test_damaged_and_unfinished_ones_are_passed_over_by_name(tmp_path: Path) -> None:
    assert find_newest(tmp_path / "nothing") == (None, [])
    valid = save_at(tmp_path, 1)
    for epoch, damage in ((2, MODEL_FILE), (3, MANIFEST)):
        (save_at(tmp_path, epoch) / damage).unlink()
    save_at(tmp_path, 4).rename(tmp_path / ".epoch-0004.new")
    found, lines = find_newest(tmp_path)
    assert found is not None and found.path == valid
    assert sorted(lines) == [
        f"skipped: checkpoint {tmp_path}/.epoch-0004.new was not finished",
        f"skipped: checkpoint {tmp_path}/epoch-0002 is damaged: {MODEL_FILE} is missing",
        f"skipped: checkpoint {tmp_path}/epoch-0003 has no {MANIFEST}",
    ]
    (valid / MODEL_FILE).write_bytes(b"")
    found, lines = find_newest(tmp_path)
    assert found is None and len(lines) == 4


def test_no_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no checkpoint \(epoch-\*/manifest"):
        find_checkpoint(tmp_path)
    with pytest.raises(UserError, match="there is no such folder"):
        find_checkpoint(tmp_path / "nothing")


# -- of which recipe -----------------------------------------------------------------------------


def changed(config: TrainConfig, **others: Any) -> TrainConfig:
    """The config with other options, and with those that these are for."""
    if {"restart_schedule", "allow_changes"} & others.keys():
        others = {"resume": Path("checkpoint"), **others}
    if "lr_milestones" in others:
        others = {"lr_schedule": "step", **others}
    return TrainConfig.from_options(**{**config.options(), **others})


@pytest.fixture(autouse=True)
def _same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are compared in tests/checkpoints/test_program.py."""
    monkeypatch.setattr(program_recipe, "check_model", lambda *_: None)


def manifest_of(config: TrainConfig, epochs: int = 0, samples: int = 0) -> Manifest:
    """The manifest of a run of `config`."""
    return Manifest(
        phalanx="0",
        model=config.model,
        dtype=config.dtype,
        optimizer=config.optimizer,
        dataset="digits",
        seed=config.seed,
        global_batch_size=config.global_batch_size(),
        epochs_done=epochs,
        samples_seen=samples,
        run="a run",
        program=recipe_of(config),
    )


def found(config: TrainConfig = CONFIG, epochs: int = 2, samples: int = 0) -> FoundCheckpoint:
    """A checkpoint of a run of `config`."""
    return FoundCheckpoint(path=Path("ck/epoch"), manifest=manifest_of(config, epochs, samples))


def check_resumable(checkpoint: FoundCheckpoint, config: TrainConfig) -> bool:
    """Whether it is of the same recipe, as a run of `config` that resumes finds it."""
    wanted = manifest_of(config)
    with as_options():
        check_program(checkpoint, wanted, {}, allow_changes=allowed_changes(config))
    return is_same_recipe(checkpoint.manifest, wanted)


def told(checkpoint: FoundCheckpoint, **others: Any) -> str:
    with pytest.raises(UserError) as caught:
        check_resumable(checkpoint, changed(CONFIG, **others))
    message = str(caught.value)
    assert message.count("\n") <= 1
    assert "=" not in message and "of the program" not in message
    return message


def test_the_same_recipe_resumes_under_any_split() -> None:
    others = TrainConfig.from_options(
        dataset="digits", ranks=3, strategy="mpi", compress="topk", threads=2, timeout_s=9.0
    )
    assert check_resumable(found(), CONFIG)
    assert check_resumable(found(), others)
    assert check_resumable(found(samples=640), others)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"lr": 0.5}, "--lr 0.001 there, 0.5 here"),
        ({"batch_size": 32}, "--batch-size 128 there, 32 here"),
        ({"weight_decay": 1.0}, "--weight-decay 0.0 there, 1.0 here"),
        ({"label_smoothing": 0.3}, "--label-smoothing 0.0 there, 0.3 here"),
        ({"clip_norm": 1.0}, "--clip-norm none there, 1.0 here"),
        ({"seed": 7}, "--seed 0 there, 7 here"),
        ({"dataset": "mnist"}, "--dataset digits there, mnist here"),
        ({"train_samples": 100}, "--train-samples none there, 100 here"),
        ({"autocast": "bf16"}, "--autocast none there, bf16 here"),
        ({"epochs": 8}, "--epochs 5 there, 8 here"),
        ({"lr_milestones": (0.1,)}, "--lr-milestones 0.5 0.75 there, 0.1 here"),
    ],
)
def test_another_recipe_is_refused_by_name(others: dict[str, Any], words: str) -> None:
    message = told(found(), **others)
    assert words in message
    advice = "--restart-schedule" if {*others} & {"lr", "epochs", "lr_milestones"} else "--allow"
    leads = advice == "--restart-schedule"  # what everybody does who wants more epochs
    assert advice in message.splitlines()[0 if leads else 1]
    allowing = {"restart_schedule": True} if advice == "--restart-schedule" else {}
    other = changed(CONFIG, **{"allow_changes": not allowing, **allowing, **others})
    assert not check_resumable(found(), other), "allowed, and a run of its own from here"


def test_every_difference_is_named() -> None:
    message = told(found(), lr=0.5, weight_decay=1.0, batch_size=32, label_smoothing=0.3)
    for name in ("--lr", "--weight-decay", "--batch-size", "--label-smoothing"):
        assert name in message
    assert "--allow-changes" in message
    message = told(found(), restart_schedule=True, lr=0.5, weight_decay=1.0)
    assert "--weight-decay" in message
    assert "--lr " not in message, "that is what --restart-schedule allows"


def test_a_checkpoint_of_a_program_is_refused() -> None:
    checkpoint = of(found(), program={}, model="Net")
    assert "was written by a program, for its model Net" in told(checkpoint)


@pytest.mark.parametrize("others", [{"seed": 3}, {"train_samples": 9}, {"dataset": "mnist"}])
def test_within_an_epoch_the_samples_must_be_the_same(others: dict[str, Any]) -> None:
    message = told(found(samples=640), allow_changes=True, **others)
    assert "a checkpoint of full epochs: this one would leave other samples" in message
    assert check_resumable(found(samples=640), CONFIG)
    batch = changed(CONFIG, batch_size=32, allow_changes=True)
    assert not check_resumable(found(samples=640), batch), "another batch is fine"


def test_more_epochs_at_a_constant_rate_are_the_same_recipe() -> None:
    constant = changed(CONFIG, lr_schedule="constant")
    more = changed(constant, epochs=9)
    assert check_resumable(found(constant, epochs=5), more)


def test_a_finished_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def line(checkpoint: FoundCheckpoint, config: TrainConfig) -> str:
        monkeypatch.setattr(resume, "find_to_resume", lambda *_, **__: (checkpoint, []))
        return nothing_to_do(config)

    constant = changed(CONFIG, lr_schedule="constant")
    for config, epochs in ((CONFIG, 5), (constant, 5), (constant, 9)):
        assert line(found(config, epochs=epochs), config) == (
            f"checkpoint ck/epoch has done {epochs} epochs, all that were requested: nothing is "
            "left"
        )
    assert not line(found(epochs=4), CONFIG)
    assert not line(found(epochs=5), changed(CONFIG, lr=0.5)), "which is refused"


@pytest.mark.parametrize("changes", [{"restart_schedule": True}, {"allow_changes": True}])
def test_a_command_that_changes_the_recipe_may_be_repeated(changes: dict[str, bool]) -> None:
    """The first time it begins a run of its own, then it resumes that, and in the end all is done:
    it used to begin the schedule anew each time, and to fail when nothing was left."""
    config = changed(CONFIG, epochs=8, **changes)
    assert not check_resumable(found(epochs=4), config)
    restarts = "restart_schedule" in changes
    assert restarts_schedule(config, found(epochs=4).manifest.program, (0, 0)) == restarts
    start = (4, 0) if restarts else (0, 0)
    resumed = found(config, epochs=6)
    assert check_resumable(resumed, config)
    assert not restarts_schedule(config, resumed.manifest.program, start)
    again = changed(config, epochs=12)
    assert not check_resumable(found(config, epochs=8), again)


def test_a_warm_up_that_leaves_nothing_is_refused() -> None:
    config = changed(CONFIG, restart_schedule=True, warmup_epochs=2.0, epochs=6)
    run = SimpleNamespace(position=(4, 0, 0), state={}, resumed=recipe_of(CONFIG))
    told = "--warmup-epochs 2 is as long as the 2 epochs that remain for --restart-schedule"
    with pytest.raises(UserError, match=told):
        _schedule_start(config, run)  # type: ignore[arg-type]


def test_a_schedule_that_begins_anew_has_epochs_to_do() -> None:
    """It ended at once, as a run that was completed."""
    config = changed(CONFIG, restart_schedule=True, lr=0.5, epochs=4)
    run = SimpleNamespace(position=(4, 0, 0), state={}, resumed=recipe_of(CONFIG))
    with pytest.raises(UserError, match="--epochs 4 leaves no epoch to train: raise --epochs"):
        _schedule_start(config, run)  # type: ignore[arg-type]


def test_a_bitwise_run_keeps_model_and_data_where_other_options_may_change() -> None:
    """Names that were allowed, those of the schedule among them, allowed all of it."""
    recipes = [{"bitwise": True, program_recipe.LAYERS: text} for text in ("ReLU()", "Tanh()")]
    checkpoint = of(found(), recipe=recipes[0])
    wanted = msgspec.structs.replace(checkpoint.manifest, recipe=recipes[1])
    for allowed in (False, ("epochs",)):
        with pytest.raises(
            UserError, match="a bitwise run resumes only with the same model and data"
        ):
            check_program(checkpoint, wanted, {}, allow_changes=allowed)
    assert check_program(checkpoint, wanted, {}, allow_changes=True)


def of(checkpoint: FoundCheckpoint, **others: Any) -> FoundCheckpoint:
    """The same with another manifest."""
    manifest = msgspec.structs.replace(checkpoint.manifest, **others)
    return dataclasses.replace(checkpoint, manifest=manifest)


def test_other_packed_data_are_refused_whatever_their_folder(tmp_path: Path) -> None:
    numbers = {"first": 77, "copy": 77, "other": 78}
    packs = {name: make_pack(tmp_path / name, samples=n) for name, n in numbers.items()}
    configs = {name: TrainConfig.from_options(data=pack, ranks=1) for name, pack in packs.items()}
    checkpoint = found(configs["first"])
    assert check_resumable(checkpoint, configs["copy"])
    with pytest.raises(UserError, match=r"has a different recipe: --data \w+ there, \w+ here"):
        check_resumable(checkpoint, configs["other"])


def test_a_repeated_job_begins_where_there_is_no_checkpoint_yet(tmp_path: Path) -> None:
    """One that was requeued before its first checkpoint failed for ever: its first life had taken
    the folder that --run-dir names."""
    folder, runs = tmp_path / "saved", tmp_path / "r"
    runs.mkdir()
    (runs / "run.json").touch()
    asked = changed(CONFIG, checkpoint_dir=folder, resume=folder, allow_changes=True, run_dir=runs)
    assert nothing_to_do(asked) == ""
    assert folder_of(complete(asked, None)[0]) == tmp_path / "r-2"
    assert folder_of(complete(changed(CONFIG, run_dir=runs), None)[0]) == runs, "not its next life"
    assert find_to_resume(folder, folder, may_begin=False) == (
        None,
        [f"no checkpoint in {folder} yet: training from the start"],
    )
    (folder / folder_name(1)).mkdir(parents=True)
    with pytest.raises(UserError, match=r"--resume .*: no complete checkpoint in it"):
        nothing_to_do(asked)


# -- into which folder ---------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is not a writable folder"):
        check_checkpoint_dir(tmp_path / "file" / "saved", None)


def test_the_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    check_checkpoint_dir(tmp_path / "nothing", None)
    check_checkpoint_dir(tmp_path, None)
    saved = save_at(tmp_path, 5)
    with pytest.raises(UserError, match=r"up to epoch-0005: resume from them by resume="):
        check_checkpoint_dir(tmp_path, None)
    check_checkpoint_dir(tmp_path, find_checkpoint(saved))
    elsewhere = find_checkpoint(save_at(tmp_path / "other", 1, run="another"))
    with pytest.raises(UserError, match=r"has checkpoints of a different run from .*epoch-0001"):
        check_checkpoint_dir(tmp_path, elsewhere)
    (saved / MANIFEST).write_bytes(b"damaged")
    with pytest.raises(UserError, match="holds the checkpoints"):
        check_checkpoint_dir(tmp_path, None)


def test_options_of_checkpoints_that_do_not_fit_are_told(tmp_path: Path) -> None:
    options = {"dataset": "digits", "ranks": 1, "checkpoint_dir": tmp_path}
    with pytest.raises(UserError, match="--resume auto needs --checkpoint-dir"):
        TrainConfig.from_options(dataset="digits", resume=Path("auto"))
    with pytest.raises(UserError, match="--checkpoint-seconds 3 and --strategy server exclude"):
        TrainConfig.from_options(**options, strategy="server", checkpoint_seconds=3.0)
