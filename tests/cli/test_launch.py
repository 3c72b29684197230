"""`phalanx launch` starts a program on ranks, keeps a log of each, and names the first failure."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.cli.program_words import separate_program
from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.installation import MpiInstallation, find_mpi
from phalanx.jobs.launch_program import Launch
from phalanx.jobs.ranks import RankRequest
from phalanx.records.files import read_run, write_record
from phalanx.records.schema import Outcome
from tests.conftest import ONE_THREAD, PATIENCE, forked_phalanx
from tests.report.made_study import Job, run_of

RUNNING = run_of(Job("mlp", "mpi", outcome=Outcome(status="running")), "study")
PROGRAM = Path(__file__).parent / "programs" / "launched.py"


@pytest.fixture(autouse=True)
def mpi() -> None:
    try:
        find_mpi(os.environ)
    except UserError as error:
        pytest.skip(str(error))


def launch(*words: object, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    command = [*forked_phalanx(), "launch", *map(str, words)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s * PATIENCE,
        check=False,
        env={**os.environ, **ONE_THREAD},
    )


@pytest.mark.mpi
def test_output_of_rank_0_is_shown_and_that_of_all_is_kept(tmp_path: Path) -> None:
    done = launch("-n", 3, "--threads", 1, "--log-dir", tmp_path / "logs", PROGRAM, "--epochs", 3)
    assert done.returncode == 0, done.stderr
    line = "rank {} of 3: ['--epochs', '3'], 1 threads, logs\n"
    assert done.stdout == line.format(0)
    for rank in range(3):
        assert (tmp_path / f"logs/rank-{rank}.log").read_text() == line.format(rank)


@pytest.mark.mpi
def test_the_first_failure_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    done = launch("-n", 2, "--log-dir", tmp_path / "logs", PROGRAM, "--fail")
    assert done.returncode == 1
    assert "phalanx: rank 1 failed first (exit code 1)" in done.stderr
    assert "  | rank 1 has had enough" in done.stderr
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "logs" / "rank-*.log") in done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize(("how", "code"), [("raise", 1), ("exit", 3)])
def test_a_rank_that_fails_ends_those_that_wait_for_it(tmp_path: Path, how: str, code: int) -> None:
    """Python alone would finalise MPI then, which waits for the others."""
    logs, program = tmp_path / "logs", PROGRAM.with_name("mpi4py_fails.py")
    done = launch("-n", 2, "--log-dir", logs, program, how, timeout_s=30)
    assert done.returncode == 1
    assert f"rank 1 failed first (exit code {code})" in done.stderr
    assert done.stdout == f"__main__ [{how!r}] in {program.parent}\n"
    if how == "raise":
        lines = (logs / "rank-1.log").read_text().splitlines()
        # MPICH and Intel MPI add a line of their own.
        *_, frame, _, error = [line for line in lines if not line.startswith(("Abort(", "In: "))]
        assert frame == f'  File "{program}", line 18, in <module>'
        assert error == "ValueError: rank 1 has had enough"
        assert "run_python" not in done.stderr, "the program's own frames alone"


@pytest.mark.parametrize(
    ("raised", "why", "kind"),
    [
        ("SystemExit(2)", r"exit code 2\)\n", UserError),
        ("SystemExit(3)", r"exit code 3\)\n", RunFailedError),
        ("ValueError('too few')", r"exit code 1\): ValueError: too few\n", RunFailedError),
    ],
)
def test_a_program_that_fails_is_told_with_its_exception_and_bad_input_as_that_of_its_launch(
    raised: str, why: str, kind: type[Exception], tmp_path: Path
) -> None:
    write_record(tmp_path, RUNNING)
    words = [sys.executable, "-c", f"raise {raised}"]
    with pytest.raises(kind, match=rf"rank 0 failed first \({why}"):
        ranks = RankRequest(ranks=1, threads=1, is_alone=True)
        Launch(words=words, ranks=ranks, output=io.BytesIO()).run(tmp_path)
    outcome = read_run(tmp_path).outcome
    assert outcome.status == "failed", "its program had left the record open"
    assert re.match(rf"rank 0 failed first \({why}", f"{outcome.error}\n")


def test_a_launcher_that_failed_before_any_rank_began_is_started_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Open MPI's did so twice in thousands of starts."""
    mpiexec, output = tmp_path / "mpiexec", io.BytesIO()
    mpiexec.write_text(
        f"#!/bin/sh\nif [ ! -e {tmp_path}/seen ]; then touch {tmp_path}/seen\n"
        'echo "PMIx server\'s listener thread failed to start. We cannot continue."; exit 213; fi\n'
        'shift 2; exec "$@"\n'
    )
    mpiexec.chmod(0o755)
    mpi = MpiInstallation(vendor="other", version="1", mpiexec=mpiexec, source="path")
    words = ["echo", "here"]
    ranks = RankRequest(ranks=1, threads=1)
    vars(ranks)["mpi"] = mpi
    Launch(words=words, ranks=ranks, output=output).run(tmp_path / "logs")
    assert output.getvalue() == b"here\n"
    assert capsys.readouterr().err.count("started once more") == 1


@pytest.mark.mpi
def test_a_module_is_run_by_its_name(tmp_path: Path) -> None:
    done = launch("-n", 1, "--log-dir", tmp_path / "logs", "-m", "json.tool", "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


@pytest.mark.mpi
@pytest.mark.alone
def test_an_interrupt_leaves_no_rank(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    words = ["-n", "2", "--log-dir", str(logs), str(PROGRAM), "--wait"]
    with subprocess.Popen([sys.executable, "-m", "phalanx", "launch", *words]) as process:
        until = time.monotonic() + 60
        while not all(
            path.exists() and "waiting" in path.read_text()
            for path in (logs / "rank-0.log", logs / "rank-1.log")
        ):
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    found = subprocess.run(["pgrep", "-f", str(PROGRAM)], capture_output=True, text=True)
    assert found.stdout == ""


@pytest.mark.parametrize(
    ("words", "at"),
    [
        (["launch", "train.py", "--threads", "4"], 1),
        (["launch", "-n", "2", "--log-dir=logs", "train.py", "-n", "3", "--help"], 4),
        (["launch", "--threads", "4", "-m", "module", "--ranks"], 3),
        (["launch", "-n", "2", "--", "train.py"], None),
        (["launch", "--help"], None),
        (["launch"], None),
        (["train", "--ranks", "2"], None),
        ([], None),
    ],
)
def test_options_behind_the_program_are_its_own(words: list[str], at: int | None) -> None:
    expected = words if at is None else [*words[:at], "--", *words[at:]]
    assert separate_program(words) == expected


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "phalanx launch needs a program"),
        (("-m",), "phalanx launch needs a program"),
        (("nowhere.py",), "there is no file nowhere.py"),
        (("no-such-command",), "there is no program no-such-command"),
        (("-n", 0, PROGRAM), "--ranks 0 must be at least 1"),
        (("--frobnicate", 3, PROGRAM), "phalanx launch has no option --frobnicate"),
        (("--threads", 0, PROGRAM), "--threads 0 must be at least 1"),
        (("--log-dir", Path(__file__).parent, PROGRAM), "is not empty: name another"),
    ],
)
def test_bad_input(words: tuple[object, ...], text: str) -> None:
    done = launch(*words)
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
