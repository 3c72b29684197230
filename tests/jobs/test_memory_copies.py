"""Copies of checkpoints in the memory of this node: a restart begins from the newest, and nothing
is left of them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from phalanx.checkpoints.checkpoint import model_files, write_checkpoint
from phalanx.checkpoints.manifest import Manifest, read_manifest
from phalanx.checkpoints.memory_copies import MemoryCopies, find_copy, folder_for
from phalanx.errors import UserError
from phalanx.gradients.reducer import GradReducer
from phalanx.jobs.memory_copies import (
    COPIES,
    NOT_COPIED,
    VALID,
    CopySettings,
    check_copied,
    newest_copy,
)
from phalanx.jobs.node_copies import (
    PREFIX,
    SHARED_MEMORY,
    abandoned_folders,
    list_copies,
    remove_abandoned,
)
from phalanx.jobs.restarts import check_restarts
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.records.files import read_run
from phalanx.report.bitwise import judge, read_bitwise_run
from tests.conftest import ONE_THREAD, PATIENCE, forked_phalanx
from tests.jobs.test_restarts import PROGRAM, process_of, run, training, truth, wait_for

pytestmark = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no /dev/shm")

BATCH_SIZE, TRAIN_SAMPLES = 16, 80
SIZES = ("--batch-size", "12", "--width", "16", "--epochs", "4")


def saved(folder: Path, epochs_done: int, samples_seen: int) -> Path:
    """Write a checkpoint as a copy; return it."""
    model = nn.Linear(3, 2)
    manifest = Manifest(
        phalanx="0",
        model="linear",
        dtype="float32",
        optimizer="sgd",
        dataset="digits",
        seed=0,
        global_batch_size=BATCH_SIZE,
        train_samples=TRAIN_SAMPLES,
        epochs_done=epochs_done,
        samples_seen=samples_seen,
        run="a run",
    )
    optimizer = torch.optim.SGD(model.parameters())
    return write_checkpoint(folder, manifest, model_files(model, optimizer))


def test_the_newest_valid_copy_is_found_and_what_is_newer_passed_over(tmp_path: Path) -> None:
    own = tmp_path / "a"
    older, newer = saved(own, 1, 16), saved(own, 1, 48)
    (own / ".epoch-0001-samples-00000064.new").mkdir()
    rows = [("n1", row) for row in list_copies(tmp_path)]
    found, lines = newest_copy(tmp_path, rows)
    assert found is not None
    assert (found.place, found.host, found.sha256) == (newer, "n1", read_manifest(newer).sha256)
    assert lines == [
        "skipped: the copy .epoch-0001-samples-00000064.new in the memory of n1 was not finished"
    ]
    assert found.describe("saved/epoch-0001") == (
        "resuming from the copy in the memory of n1, step 8, epoch-0001-samples-00000048; the "
        "newest on the disk is of step 5"
    )
    assert found.describe(None).endswith("; there is none on the disk")
    content = bytearray((newer / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (newer / "model.safetensors").write_bytes(content)
    found, lines = newest_copy(tmp_path, [("n1", row) for row in list_copies(tmp_path)])
    assert found is not None and found.place == older
    assert lines[-1] == (
        "skipped: the copy epoch-0001-samples-00000048 in the memory of n1 is damaged: "
        "model.safetensors does not have its SHA-256"
    )
    (older / "manifest.json").write_text("{")
    found, lines = newest_copy(tmp_path, [("n1", row) for row in list_copies(tmp_path)])
    assert found is None and len(lines) == 3


def test_a_rank_takes_a_valid_copy_that_is_newer_than_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, disk, group = CopySettings(tmp_path, 1.0), Path("saved"), RunGroup()
    folder = folder_for(settings, disk)
    copy, invalid = saved(folder, 1, 16), saved(folder, 1, 48)
    assert folder_for(settings, Path("other")) != folder
    assert find_copy(disk, group, (-1, 0)) is None  # no restart
    monkeypatch.setenv(COPIES, f"1 {tmp_path}")
    monkeypatch.setenv(VALID, f"{read_manifest(copy).sha256} {'0' * 64}")
    assert find_copy(disk, group, (1, 16)) is None
    assert find_copy(Path("other"), group, (-1, 0)) is None
    found = find_copy(disk, group, (1, 0))
    assert found is not None
    assert (found[0].path, found[0].manifest) == (copy, read_manifest(copy))
    assert not invalid.exists()


def test_no_copy_is_made_where_there_is_no_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy = Replicas(RunGroup())
    strategy.reducer = GradReducer([])
    strategy.model = nn.Linear(3, 2)
    strategy.optimizer = torch.optim.SGD(strategy.model.parameters())
    manifest = read_manifest(saved(tmp_path / "saved", 0, 16))
    copies = MemoryCopies(
        folder=tmp_path / "run" / "a",
        every_s=1e-9,
        strategy=strategy,
        manifest=manifest,
        shapes={},
    )
    copies.save((0, 32), 2, 1.5)
    copies.close()
    assert read_manifest(copies.folder / "epoch-0000-samples-00000032").saved_at == 1.5
    copies._num_bytes = 1 << 60
    assert not copies.is_due() and not copies.is_due()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("phalanx: no copy of the checkpoint in the memory of ")
    assert "it needs 1,152,921,504,606.8 MB, and " in line


def test_a_folder_that_others_can_write_is_no_place_for_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user made the folder first, under the name that the run had on another node: he read
    the parameters, and his forged checkpoint counted as valid."""
    settings, disk = CopySettings(tmp_path / "run", 1.0), Path("saved")
    forged = saved(folder_for(settings, disk), 9, 0)
    monkeypatch.setenv(COPIES, f"1 {settings.folder}")
    monkeypatch.setenv(VALID, read_manifest(forged).sha256)
    settings.folder.chmod(0o777)
    strategy = Replicas(RunGroup())
    strategy.reducer = GradReducer([])
    strategy.model = nn.Linear(3, 2)
    strategy.optimizer = torch.optim.SGD(strategy.model.parameters())
    copies = MemoryCopies.of(disk, strategy, read_manifest(forged), {})
    assert copies is not None
    copies.save((0, 32), 2, 1.5)
    copies.close()
    assert [*copies.folder.iterdir()] == [forged]
    assert "belongs to another user, or other users may read it" in capsys.readouterr().err
    assert list_copies(settings.folder) == []
    assert find_copy(disk, RunGroup(), (-1, 0)) is None
    settings.folder.chmod(0o700)
    assert find_copy(disk, RunGroup(), (-1, 0)) is not None
    if os.geteuid() == 0:
        os.chown(settings.folder, 65534, 65534)
        assert list_copies(settings.folder) == []


def test_a_copy_names_no_file_outside(tmp_path: Path) -> None:
    copy = saved(tmp_path / "a", 1, 0)
    document = json.loads((copy / "manifest.json").read_text())
    document["files"]["../../secret"] = {"sha256": "", "bytes": 0}
    (copy / "manifest.json").write_text(json.dumps(document))
    (row,) = list_copies(tmp_path)
    assert row["problem"] == "is damaged: '../../secret' is not a file name"


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the copies of a run, and prints their folder."""
    program = (
        "from phalanx.jobs.node_copies import owned_folder; import os, sys\n"
        "with owned_folder(f'{os.getpid()}.test') as folder:\n"
        "    print(folder, flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_what_a_killed_owner_leaves_is_removed_and_nothing_else(
    owner: subprocess.Popen[str],
) -> None:
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    remote = SHARED_MEMORY / f"{PREFIX}{os.getpid()}.remote"
    try:
        (remote / "a").mkdir(parents=True)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not {folder, remote} & {*abandoned_folders()}
        owner.kill()
        owner.wait()
        long_ago = time.time() - 1_000
        for path in (remote / "a", remote):
            os.utime(path, (long_ago, long_ago))
        assert {folder, remote} <= {*abandoned_folders()}
        remove_abandoned()
        assert not folder.exists() and not remote.exists()
    finally:
        for path in (remote / "a", remote):
            if path.exists():
                path.rmdir()


def test_an_owner_that_ends_removes_its_folder(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    assert folder.is_dir()
    owner.communicate("")
    assert owner.returncode == 0 and not folder.exists()


@pytest.mark.parametrize(
    ("every_s", "restarts", "strategy", "saved", "words"),
    [
        (0.0, 1, "mpi", "saved", "--memory-checkpoint-seconds 0 must be positive"),
        (2.0, 0, "mpi", "saved", "2 is for restarts: also give --restarts N"),
        (2.0, 1, "mpi", None, "--memory-checkpoint-seconds 2 needs --checkpoint-dir"),
        *((2.0, 1, each, "saved", f"{each} exclude each other: {NOT_COPIED[each][:20]}")
          for each in NOT_COPIED),
    ],
)  # fmt: skip
def test_copies_that_nobody_reads_or_makes_are_refused(
    every_s: float, restarts: int, strategy: str, saved: str | None, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        check_restarts(restarts, every_s, {})
        check_copied(every_s, strategy, None if saved is None else Path(saved))


@pytest.mark.mpi
def test_both_commands_refuse_them() -> None:
    for words in (("launch", "-n", 1), ("train",)):
        program = [PROGRAM] if words[0] == "launch" else []
        done = run(*words, "--memory-checkpoint-seconds", 3, *program)
        assert done.returncode == 2, done.stderr
        assert "also give --restarts N" in done.stderr


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize(
    ("ways", "num_steps", "on_disk"),
    [(("launcher",), 9, ("of step 6",)), (("kill", "stop"), 5, ("none", "of step 6"))],
)
def test_a_program_goes_on_from_memory_where_the_disk_has_less(
    tmp_path: Path, ways: tuple[str, ...], num_steps: int, on_disk: tuple[str, ...]
) -> None:
    """Its checkpoints on the disk are those of epochs, of six steps each."""
    logs, own = tmp_path / "logs", tmp_path / "own"
    own.mkdir()
    options = ("--log-dir", logs, "-n", 2, "--restarts", 2, "--memory-checkpoint-seconds", 0.05)
    steps = {"TEST_STEPS": f"{num_steps}", "TEST_CHECKPOINT_STEPS": "0", "TEST_STEP_S": "0.03"}
    environment = {"TEST_TIMEOUT_S": "10", **steps}
    done = run("launch", *options, PROGRAM, tmp_path, *ways, environment=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result.json").read_text()) == truth(own)
    restarts = read_run(logs).restarts
    assert len(restarts) == len(ways)
    lines = [line for line in done.stderr.splitlines() if "phalanx: restart " in line]
    for restart, line, disk in zip(restarts, lines, on_disk, strict=True):
        assert restart.memory_of is not None and restart.checkpoint is not None, done.stderr
        assert f"resuming from the copy in the memory of {restart.memory_of}, step " in line
        assert line.endswith("none on the disk" if disk == "none" else f"on the disk is {disk}")
        assert not Path(restart.checkpoint).parent.parent.exists()
    assert done.stdout.count("resuming from the copy in the memory of ") == len(ways)


@pytest.mark.mpi
def test_a_training_goes_on_from_memory_to_the_bits_of_one_process(tmp_path: Path) -> None:
    """Its only checkpoints on the disk are of whole epochs of ten steps."""
    folder, disk = tmp_path / "run", tmp_path / "checkpoints"
    words = ("--strategy", "mpi", "--ranks", 2, "--restarts", 1, "--checkpoint-dir", disk)
    often = ("--memory-checkpoint-seconds", 0.05, "--slow-rank", "0:0.1")
    with training(folder, *words, *often, sizes=SIZES, phalanx=forked_phalanx()) as process:
        pid = process_of(folder / "rank-1.jsonl")
        wait_for(lambda: b'"step":12,' in (folder / "rank-1.jsonl").read_bytes())
        wait_for((disk / "epoch-0001").exists)  # a thread writes it meanwhile
        os.kill(pid, signal.SIGKILL)
        said = process.communicate(timeout=90 * PATIENCE)[0]
    assert process.returncode == 0, said
    with training(tmp_path / "alone", sizes=SIZES, phalanx=forked_phalanx()) as alone:
        alone.communicate(timeout=60 * PATIENCE)
    is_same, why = judge(*(read_bitwise_run(tmp_path / name) for name in ("run", "alone")))
    assert is_same, why
    (restart,) = read_run(folder).restarts
    assert restart.checkpoint is not None and restart.memory_of is not None, said
    assert "; the newest on the disk is of step 10" in said
    assert not Path(restart.checkpoint).parent.parent.exists()


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("--strategy", "sequential"),
        ("--strategy", "mpi"),
        ("--strategy", "mpi", "--compress", "powersgd"),
        ("--strategy", "gloo"),
        ("--strategy", "shared"),
        ("--strategy", "shared", "--bitwise"),
        ("--strategy", "zero"),
        ("--strategy", "zero", "--zero-stage", "2", "--bitwise"),
        ("--strategy", "tensor"),
        ("--strategy", "pipeline"),
        ("--mesh", "dp=2"),
        ("--mesh", "shard=2"),
        ("--survive", "--strategy", "mpi"),
    ],
    ids=" ".join,
)
def test_every_strategy_goes_on_from_memory_to_its_parameters(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """All ranks are killed within the second epoch."""
    num_ranks = 1 if "sequential" in words else 2

    def command(name: str, *more: object) -> list[str]:
        samples = ("--train-samples", "120", "--validation-samples", "60", "--dataset", "digits")
        places = ("--run-dir", tmp_path / name, "--checkpoint-dir", tmp_path / f"{name}-saved")
        run_words = (*samples, *SIZES, "--ranks", num_ranks, *words, *places, *more)
        return [*forked_phalanx(), "train", *map(str, run_words)]

    environment = {**os.environ, **ONE_THREAD}
    copies = ("--restarts", 1, "--memory-checkpoint-seconds", 0.05, "--slow-rank", "0:0.1")
    with subprocess.Popen(
        command("run", *copies, "--timeout-s", 20),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        files = [tmp_path / "run" / f"rank-{rank}.jsonl" for rank in range(num_ranks)]
        pids = [process_of(file) for file in files]
        wait_for(lambda: b'"step":12,' in files[0].read_bytes())
        wait_for((tmp_path / "run-saved" / "epoch-0001").exists)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        said = process.communicate(timeout=120 * PATIENCE)[0]
    assert process.returncode == 0, said
    assert "resuming from the copy in the memory of " in said
    assert "; the newest on the disk is of step 10" in said
    subprocess.run(command("alone"), check=True, capture_output=True, env=environment)
    sums = [
        json.loads((folder / "rank-0.jsonl").read_text().splitlines()[-1])["parameters_sha256"]
        for folder in (tmp_path / "run" / "restart-1", tmp_path / "alone")
    ]
    assert sums[0] == sums[1]
