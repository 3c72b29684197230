"""Damaged checkpoints, packs and records: refused in a few lines, and never taken for whole."""

import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.damage import damage
from tests.cli.forked import WOULD_START, Done, Forked, Forks
from tests.conftest import ONE_THREAD, forked_phalanx
from tests.report.made_study import Job, make_study

TRAIN = (
    *("train", "--dataset", "digits", "--train-samples", "200", "--validation-samples", "50"),
    *("--lr-schedule", "constant", "--epochs"),
)
SHORT, LONG = 8, 170  # damages of each kind of folder

# A pack of an older Phalanx has no list of its splits.
HARMLESS: tuple[str, ...] = ()

Verdict = Callable[[Done], str | None]


@pytest.fixture(scope="module")
def forked(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Forked:
    return Forked(forks, tmp_path_factory.mktemp("damaged"))


def told_well(done: Done) -> str | None:
    """What is wrong with how it is told, whatever it is."""
    if "Traceback" in done.stderr + done.stdout:
        return "traceback"
    if done.code == 2 and not done.is_refused_well:
        return "refused in other than one to four lines"
    known = (0, 1, 2, WOULD_START)
    return None if done.code in known else f"ended with {done.code}"


def must_refuse(done: Done) -> str | None:
    return told_well(done) or ("taken for whole" if done.code in (0, WOULD_START) else None)


def check(
    forked: Forked, whole: Path, commands: list[tuple[list[str], Verdict]], seed: int, count: int
) -> None:
    """Damage a copy of `whole`, named DAMAGED in `commands`, `count` times."""
    chance = random.Random(seed)
    faults, codes, num_told = [], Counter[object](), 0
    for _ in range(count):
        copy = forked.folder / "copy"
        shutil.copytree(whole, copy, symlinks=True)
        while (what := damage(copy, chance)) in HARMLESS:
            shutil.rmtree(copy)
            shutil.copytree(whole, copy, symlinks=True)
        for words, verdict in commands:
            line = [word.replace("DAMAGED", str(copy)) for word in words]
            done = forked(*line, timeout_s=60)
            codes[done.code] += 1
            num_told += done.code in (1, 2) or "left out" in done.stderr
            wrong = verdict(done)
            if wrong:
                faults.append(f"{what}: {' '.join(words[:2])}: {wrong}\n{done.stderr[-500:]}")
        shutil.rmtree(copy)
        shutil.rmtree(forked.folder / "runs", ignore_errors=True)
    print(f"{count} damages of {whole.name}, by exit code: {dict(codes)}")
    assert not faults, f"{len(faults)} of {count}:\n" + "\n".join(faults[:20])
    assert num_told > 0


def check_records(forked: Forked, seed: int, count: int) -> None:
    whole = forked.folder / f"study-{seed}"
    make_study(whole, [Job("mlp", "sequential", epochs=2), Job("mlp", "mpi", 2, epochs=2)])
    check(forked, whole, [(["report", "DAMAGED"], told_well)], seed, count)


def check_pack(forked: Forked, seed: int, count: int) -> None:
    folder = forked.folder / f"pack-{seed}"
    folder.mkdir()
    rows = (f"{n},{n * n % 7},{'xyz'[n % 3]}\n" for n in range(200))
    (folder / "table.csv").write_text("a,b,label\n" + "".join(rows))
    pack = str(folder / "pack")
    words = ("data", "pack", str(folder / "table.csv"), pack, "--target", "label")
    done = forked(*words, "--shard-mb", "0.001")
    assert done.code == 0, done
    commands = [
        (["data", "verify", "DAMAGED"], must_refuse),
        (["train", "--data", "DAMAGED"], told_well),  # shards are read by the ranks
    ]
    check(forked, Path(pack), commands, seed, count)


def check_checkpoints(forked: Forked, seed: int, count: int) -> None:
    folder = forked.folder / f"checkpoints-{seed}"
    words = [*TRAIN, "1", "--run-dir", str(folder.with_suffix(".run"))]
    command = [*forked_phalanx(), *words, "--checkpoint-dir", str(folder)]
    subprocess.run(command, check=True, env=os.environ | ONE_THREAD)
    resume = [*TRAIN, "3", "--resume"]
    sound = forked(*resume, str(folder / "epoch-0001"))
    assert sound.code == WOULD_START, sound
    check(forked, folder / "epoch-0001", [([*resume, "DAMAGED"], must_refuse)], seed, count)


CHECKS = (check_records, check_pack, check_checkpoints)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check_some", CHECKS)
def test_damaged_files(forked: Forked, check_some: Callable[[Forked, int, int], None]) -> None:
    check_some(forked, 1, SHORT)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("check_some", CHECKS)
def test_many_damaged_files(forked: Forked, check_some: Callable[[Forked, int, int], None]) -> None:
    check_some(forked, 2, LONG)
