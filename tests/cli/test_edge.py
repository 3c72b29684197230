"""What the system refuses is one line with the file's name, and exit code 2."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.cli.main import handle_termination_signals, main
from tests.cli.conftest import PHALANX
from tests.cli.forked import Done, Forked, Forks
from tests.report.made_study import Job, make_run

NOBODY = 65534
AS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def forked(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Forked:
    folder = tmp_path_factory.mktemp("edge")
    for path in (folder, *folder.parents[:3]):
        path.chmod(path.stat().st_mode | 0o055)  # so that another user gets here
    return Forked(forks, folder)


def refused(done: Done, *words: str) -> None:
    assert done.is_refused_well, done
    assert len(done.stderr.splitlines()) <= 2, done
    for word in words:
        assert word in done.stderr, done


def test_what_another_user_may_not_read_or_write_is_named(forked: Forked) -> None:
    """`Path.exists` raises PermissionError: of 20 such cases 8 were a traceback."""
    folder = forked.folder / "permission"
    user = NOBODY if AS_ROOT else None
    run, closed, mine, readable = (folder / name for name in ("run", "closed", "mine", "readable"))
    make_run(run, Job("mlp", "mpi", 2, epochs=1))
    checkpoint = folder / "checkpoints" / "epoch-0001"
    for made in (closed / "epoch-0001", closed / "train", mine, readable, checkpoint):
        made.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    cases = {
        run: (["report", str(run)],),
        closed: (
            ["report", str(closed / "x")],
            ["train", "--resume", str(closed)],
            ["train", "--resume", str(closed / "epoch-0001")],
            ["train", "--data", str(closed)],
            ["data", "verify", str(closed)],
            ["data", "list", "--data-root", str(closed / "train")],
            ["data", "pack", str(closed / "x.tar"), str(folder / "out")],
        ),
        checkpoint: (["train", "--dataset", "digits", "--resume", str(checkpoint)],),
        mine: (
            ["train", "--dataset", "digits", "--run-dir", str(mine / "x")],
            ["train", "--dataset", "digits", "--checkpoint-dir", str(mine / "x" / "y")],
            ["bench", "collectives", "--output", str(mine / "x")],
            ["study", "scaling", "--study-dir", str(mine / "x")],
        ),
        readable: (
            ["train", "--dataset", "digits", "--checkpoint-dir", str(readable / "x" / "y")],
            ["train", "--dataset", "digits", "--run-dir", str(readable / "x")],
        ),
    }
    for place in cases:
        place.chmod(0o555 if place == readable else 0)
    try:
        for place, commands in cases.items():
            for words in commands:
                done = forked(*words, user=user)
                refused(done, "Permission denied" if place not in (mine, readable) else str(place))
    finally:
        for place in cases:
            place.chmod(0o755)
    assert not [*mine.iterdir(), *readable.iterdir()]


@pytest.mark.parametrize("name", ["a" * 300, "/".join(["b" * 200] * 30)])
def test_names_that_are_too_long(forked: Forked, name: str) -> None:
    for words in (
        ["report", name],
        ["train", "--resume", name],
        ["train", "--data", name],
        ["train", "--dataset", "digits", "--run-dir", name],
        ["train", "--dataset", "digits", "--checkpoint-dir", name],
        ["study", "scaling", "--study-dir", name],
        ["bench", "collectives", "--output", name],
        ["data", "pack", name, "out"],
        ["data", "list", "--data-root", name],
    ):
        refused(forked(*words), "name too long")


def test_names_that_are_no_text(forked: Forked) -> None:
    name = os.fsdecode(b"\xff")
    for words in (
        ["train", "--dataset", "digits", "--run-dir", name],
        ["study", "scaling", "--study-dir", name],
        ["bench", "collectives", "--output", name],
    ):
        refused(forked(*words), "not valid UTF-8: '\\udcff'")
        assert not (forked.folder / name).exists()
    refused(forked("data", "list", "--data-root", name), "--data-root")


@pytest.mark.parametrize("ranks", ["100000", "9" * 30])
def test_ranks_that_no_node_can_run(forked: Forked, ranks: str) -> None:
    for words in (
        ["bench", "collectives"],
        ["train", "--dataset", "digits", "--strategy", "mpi", "--batch-size", ranks],
        ["doctor"],
    ):
        done = forked(*words, "--ranks", ranks)
        refused(done)
    assert not list(forked.folder.glob("runs/*"))


@pytest.mark.parametrize("name", ["deep.toml", "deep.yaml", "large.yaml"])
def test_files_of_options_that_no_reader_can_hold(forked: Forked, name: str) -> None:
    path = forked.folder / name
    deep = "[" * 3000 + "]" * 3000
    content = {
        "deep.toml": f"model = {deep}\n",
        "deep.yaml": f"model: {deep}\n",
        "large.yaml": "{" * 100_000,
    }
    path.write_text(content[name])
    told = "exceeds 20,000 bytes" if name == "large.yaml" else "cannot be read"
    refused(forked("train", "--config", str(path)), name, told)
    if path.suffix == ".yaml":
        refused(forked("bench", "io", "--profile", str(path)), name)


def test_output_that_is_full(forked: Forked) -> None:
    done = forked("data", "list", stdout="/dev/full")
    assert (done.code, done.stderr) == (2, "phalanx: No space left on device\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_in_an_encoding_that_lacks_signs(encoding: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [PHALANX, "data", "list", "--data-root", tmp_path],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert b"SHA-256" in done.stdout
    assert done.stderr == b""


def test_output_that_is_closed(tmp_path: Path) -> None:
    """Descriptor 1 was the next file that was opened."""
    words = f"{PHALANX} data list --data-root {tmp_path} >&-"
    done = subprocess.run(["sh", "-c", words], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    done = subprocess.run(
        ["sh", "-c", f"{PHALANX} train --help | head -1"], capture_output=True, cwd=tmp_path
    )
    assert done.stderr == b""


def test_ctrl_c_is_answered_with_its_exit_code_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("phalanx.cli.data.inventory", interrupted)
    monkeypatch.setattr("phalanx.cli.main.handle_termination_signals", lambda: None)
    with pytest.raises(SystemExit) as caught:
        main(["data", "list"])
    assert caught.value.code == 130
    assert capsys.readouterr() == ("", "")


INTERRUPTED = """
import sys

class Finder:
    def find_spec(self, name, *_):
        if name == "cyclopts":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
from phalanx.cli.main import main
main(["data", "list"])
"""


def test_ctrl_c_during_imports_is_answered_with_its_exit_code_alone() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_signal_that_is_ignored_stays_so() -> None:
    """`nohup phalanx train` goes on when its terminal is closed."""
    requests = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {request: signal.getsignal(request) for request in requests}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        handle_termination_signals()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        for request in (signal.SIGTERM, signal.SIGQUIT):
            assert signal.getsignal(request) is signal.default_int_handler
    finally:
        for request, handler in before.items():
            signal.signal(request, handler)
