"""Whatever is typed, it is refused in a few lines and leaves nothing, or it is begun."""

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from phalanx.cli.app import app
from tests.cli.forked import WOULD_START, Done, Forked, Forks
from tests.cli.generated import Command, Generator, commands_of
from tests.report.made_study import Job, make_run, make_study

SHORT, LONG = 120, 2000


def made_places(folder: Path) -> list[Path]:
    """What commands may be pointed at."""
    study, run = folder / "study", folder / "run"
    make_study(study, [Job("mlp", "mpi", 2, epochs=1)])
    make_run(run, Job("mlp", "mpi", 2, epochs=1))
    (folder / "empty").mkdir()
    (folder / "text").write_text("some\nlines\n")
    (folder / "bytes").write_bytes(os.urandom(3000))
    (folder / "table.csv").write_text("a,b,label\n1,2,x\n3,4,y\n5,6,x\n7,8,y\n")
    os.mkfifo(folder / "fifo")
    return sorted(folder.iterdir())


def fault(done: Done, folder: Path) -> str | None:
    """What is wrong with an answer."""
    if "Traceback" in done.stderr or "Traceback" in done.stdout:
        return "traceback"
    if done.code == 2:
        if not done.is_refused_well:
            return "refused in other than one to four lines"
        return "refused, and left files" if any(folder.iterdir()) else None
    if done.code == 1 and not done.stderr.startswith("phalanx: "):
        return "failed without a word"
    return None if done.code in (0, 1, WOULD_START) else f"ended with {done.code}"


@pytest.fixture(scope="module")
def commands() -> list[Command]:
    return list(commands_of(app))


def check(forks: Forks, tmp_path: Path, seed: int, count: int, commands: list[Command]) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "places").mkdir()
    generator = Generator(seed, commands, made_places(tmp_path / "places"))
    codes: Counter[object] = Counter()
    faults = []
    run = Forked(forks, tmp_path)
    for _ in range(count):
        folder = tmp_path / "here"
        folder.mkdir()
        words = generator.line()
        done = run(*words, folder=folder, timeout_s=60)
        codes[done.code] += 1
        wrong = fault(done, folder)
        if wrong:
            faults.append(f"{wrong}: {words}\n{done.stderr[-600:]}")
        shutil.rmtree(folder)
    print(f"{count} command lines, by exit code: {dict(codes)}")
    assert not faults, f"{len(faults)} of {count}:\n" + "\n".join(faults[:20])
    assert codes[2] > count / 3, "most are to be refused"
    assert codes[WOULD_START] + codes[0] > 0, "some are to be good"


@pytest.mark.timeout(600)
def test_command_lines_made_at_random(
    forks: Forks, tmp_path: Path, commands: list[Command]
) -> None:
    check(forks, tmp_path, 1, SHORT, commands)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_many_command_lines_made_at_random(
    forks: Forks, tmp_path: Path, seed: int, commands: list[Command]
) -> None:
    check(forks, tmp_path, seed, LONG // 4, commands)
