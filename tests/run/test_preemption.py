"""SIGTERM to any rank, or to the command that started them, costs no bit of the result."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phalanx.checkpoints.find import find_newest
from phalanx.checkpoints.folder import readable_folders
from phalanx.errors import EXIT_STOPPED
from phalanx.jobs.rank_notes import read_ends
from phalanx.records.files import read_run
from tests.conftest import ONE_THREAD, PATIENCE, forked_phalanx, forked_python

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]
PROGRAM = Path(__file__).parent / "programs" / "preempted.py"
EPOCHS = 40
"""Of 6 steps, each of which sleeps for:"""
SLEEP_S = "0.02"
SIGNALS_A_RUN = 5


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the result of one process that nobody disturbs."""
    folder = tmp_path_factory.mktemp("truth")
    command = [str(forked_python()), str(PROGRAM), str(folder), str(EPOCHS), "0"]
    environment = {**os.environ, **ONE_THREAD}
    subprocess.run(command, check=True, capture_output=True, timeout=60 * PATIENCE, env=environment)
    return (folder / "result").read_text()


@contextmanager
def launched(
    folder: Path, number: int, ranks: int, *options: str
) -> Iterator[subprocess.Popen[str]]:
    logs = folder / f"logs-{number}"
    for path in folder.glob("process-*"):
        path.unlink()
    words = ["launch", "-n", str(ranks), "--threads", "1", "--log-dir", str(logs), *options]
    program = [str(PROGRAM), str(folder), str(EPOCHS), SLEEP_S]
    with subprocess.Popen(
        [*forked_phalanx(), *words, *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **ONE_THREAD, "OMPI_MCA_mpi_yield_when_idle": "1"},
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60 * PATIENCE
    while not path.exists() and process.poll() is None:
        assert time.monotonic() < until, path
        time.sleep(0.01)


def listens(folder: Path, number: int, ranks: int) -> bool:
    """Return whether all ranks have listened by now, and none has come to its end."""
    notes = [folder / f"logs-{number}" / f"listening-{rank}.json" for rank in range(ranks)]
    return all(note.exists() and "over" not in note.read_text() for note in notes)


def send(process: subprocess.Popen[str], folder: Path, target: int | None) -> None:
    """Send SIGTERM to a rank; None: to the command."""
    if target is None:
        process.terminate()
    else:
        os.kill(int((folder / f"process-{target}").read_text()), signal.SIGTERM)


def test_a_run_that_is_preempted_goes_on_to_the_same_bits(tmp_path: Path, truth: str) -> None:
    """Stopped through a rank, then through the command, each time with other ranks."""
    for number, (ranks, target) in enumerate([(2, 1), (3, None)]):
        (tmp_path / "trains").unlink(missing_ok=True)
        with launched(tmp_path, number, ranks) as process:
            wait_for(
                tmp_path / ("trains" if number == 0 else f"logs-{number}/listening-0.json"), process
            )
            send(process, tmp_path, target)
            output, _ = process.communicate(timeout=60 * PATIENCE)
        assert process.returncode == EXIT_STOPPED, output
        assert "phalanx: stopped after step" in output
        outcome = read_run(tmp_path / f"logs-{number}").outcome
        assert "stopped after step" in (outcome.error or ""), "no end of the run was agreed"
        assert 1 <= len(readable_folders(tmp_path / "checkpoints")) <= 2
    with launched(tmp_path, 2, 1) as process:
        output, _ = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 0, output
    assert f"resuming from {tmp_path / 'checkpoints'}/epoch-" in output
    assert (tmp_path / "result").read_text() == truth


SLOW_TO_END = """
import ctypes, os, signal
import phalanx, torch

rank = int(os.environ["RANK"])
libc = ctypes.CDLL(None)
if rank:
    libc.on_exit(libc.sleep, None)  # for as many seconds as its exit code
model = torch.nn.Linear(4, 1)
data = torch.randn(40, 4), torch.randn(40, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = phalanx.start(model, optimizer, data, batch_size=8, checkpoint_dir="c", steps=10_000)
for batch in run:
    run.backward(run.model(batch.inputs).square().mean())
    if batch.step == 3 and not rank:
        os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_rank_that_ends_late_has_stopped_all_the_same(tmp_path: Path) -> None:
    """Once Open MPI's launcher has seen the first exit code of 75, it ends the other ranks by
    SIGTERM. The run was told as failed then: 3 of 10 runs of random preemptions."""
    (tmp_path / "program.py").write_text(SLOW_TO_END)
    done = subprocess.run(
        [*forked_phalanx(), "launch", "-n", "2", "--log-dir", "logs", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100 * PATIENCE,
        env={**os.environ, **ONE_THREAD},
    )
    assert done.returncode == EXIT_STOPPED, done.stdout + done.stderr
    assert "phalanx: stopped after step" in done.stdout + done.stderr
    assert set(read_ends(tmp_path / "logs").values()) == {EXIT_STOPPED}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10))
def test_same_bits_through_random_preemptions(tmp_path: Path, truth: str, seed: int) -> None:
    """At any moment: also while ranks start, evaluate, save and end."""
    drawn = random.Random(seed)
    number, num_stopped, code = 0, 0, -1
    while code != 0:
        ranks = drawn.randint(1, 4)
        target = drawn.choice([None, *range(ranks)])
        is_disturbed = number < SIGNALS_A_RUN
        with launched(tmp_path, number, ranks) as process:
            did_listen = False
            if is_disturbed:
                for rank in range(ranks):
                    wait_for(tmp_path / f"process-{rank}", process)
                wait_for(tmp_path / f"logs-{number}" / "listening-0.json", process)
                time.sleep(drawn.uniform(0, 1.0))
                did_listen = listens(tmp_path, number, ranks)
                if process.poll() is None:
                    send(process, tmp_path, target)
            output, _ = process.communicate(timeout=100 * PATIENCE)
        code = process.returncode
        if did_listen or not is_disturbed:
            assert code in (0, EXIT_STOPPED), (number, ranks, target, output)
        num_stopped += code == EXIT_STOPPED
        number += 1
        found, skipped = find_newest(tmp_path / "checkpoints")
        assert not skipped and (found is not None or not did_listen)
        assert len(readable_folders(tmp_path / "checkpoints")) <= 2
    assert (tmp_path / "result").read_text() == truth
    print(f"seed {seed}: {num_stopped} of {number} starts were stopped")
