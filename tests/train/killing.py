"""A run that is killed again and again and resumes each time, held to one that never was.

    python -m tests.train.killing FOLDER [--kills 100] [--seed 0] [--cases mpi,zero3]

prints a line for each kill and the tally at the end; exit code 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from phalanx.checkpoints.find import find_checkpoint
from phalanx.checkpoints.manifest import file_sha256
from phalanx.errors import UserError
from phalanx.records.events import StartedEvent
from phalanx.records.files import read_events
from tests.conftest import ONE_THREAD

EPOCHS = 3
SMALL = (
    *("--dataset", "digits", "--train-samples", "600", "--validation-samples", "50"),
    *("--batch-size", "30", "--epochs", str(EPOCHS), "--checkpoint-steps", "4", "--threads", "1"),
)
CASES = {
    "sequential": "--strategy sequential",
    "mpi": "--strategy mpi --ranks 2",
    "mpi3": "--strategy mpi --ranks 3 --overlap on",
    "topk": "--strategy mpi --ranks 2 --compress topk",
    "powersgd": "--strategy mpi --ranks 2 --compress powersgd",
    "shared": "--strategy shared --ranks 2",
    "gloo": "--strategy gloo --ranks 2",
    "server": "--strategy server --ranks 3",
    "local": "--strategy local --ranks 2 --local-steps 3 --outer-optimizer nesterov",
    "zero1": "--strategy zero --zero-stage 1 --ranks 2",
    "zero3": "--strategy zero --zero-stage 3 --ranks 2",
    "tensor": "--strategy tensor --ranks 2",
    "pipeline": "--strategy pipeline --ranks 2",
    "mesh": "--mesh dp=2,tp=2 --ranks 4",
}
COMMAND = (sys.executable, "-m", "phalanx")
FILES = ("model.safetensors", "optimizer.safetensors")
PATIENCE_S = 240.0
"""Of a machine where others work too; what takes longer hangs."""


@dataclass
class Tally:
    """What has happened, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def fail(self, text: str) -> None:
        """Note what was wrong, and say it at once."""
        self.wrong.append(text)
        print(f"WRONG: {text}", flush=True)

    def add(self, other: Tally) -> None:
        self.counts += other.counts
        self.wrong += other.wrong


class Attempt:
    """One start of the command, into the same folder of checkpoints."""

    def __init__(self, command: Sequence[str], case: str, folder: Path, number: int) -> None:
        self.saved, self.records = folder / "saved", folder / f"run-{number}"
        self.before = position(self.saved)
        resume = ("--resume", str(self.saved)) if self.before >= (0, 0) else ()
        words = (
            *(*command, "train", *SMALL, *CASES[case].split()),
            *("--checkpoint-dir", str(self.saved), "--run-dir", str(self.records), *resume),
        )
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )

    def wait_for(self, num_saves: int, deadline: float) -> bool:
        """Until so many checkpoints are new; False when the run has ended or time is up."""
        known, seen = names(self.saved), set[str]()
        while len(seen) < num_saves:
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            seen |= names(self.saved) - known
            time.sleep(0.005)
        return True

    def rank(self, number: int) -> int | None:
        """Its process, once it has said so."""
        path = self.records / f"rank-{number}.jsonl"
        events = read_events(path) if path.exists() else iter(())
        return next((e.process_id for e in events if isinstance(e, StartedEvent)), None)

    def processes(self) -> list[psutil.Process]:
        """What it has started: its children, theirs, and ranks that are forks of another."""
        found = {process.pid: process for process in family(self.process.pid)}
        for number in range(4):
            pid = self.rank(number)
            if pid is not None and psutil.pid_exists(pid):
                with suppress(psutil.NoSuchProcess):
                    found.setdefault(pid, psutil.Process(pid))
        return list(found.values())

    def end(self, timeout_s: float) -> str | None:
        """Its output; None when it hangs, and then it is ended."""
        try:
            output, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            for process in [*self.processes(), psutil.Process(self.process.pid)]:
                process.kill()
            self.process.communicate()
            return None
        return output


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("epoch-*")}


def position(folder: Path) -> tuple[int, int]:
    """Of the newest checkpoint; (-1, 0) where there is none."""
    try:
        return find_checkpoint(folder).manifest.position
    except UserError:
        return -1, 0


def family(process_id: int) -> list[psutil.Process]:
    try:
        return psutil.Process(process_id).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill(attempt: Attempt, chosen: random.Random) -> str:
    """End the command, a rank, the launcher or all of them. Returns: what was done."""
    main = attempt.process
    how = chosen.choice(["rank", "rank", "main", "all", "term", "interrupt"])
    children = attempt.processes()
    rank = attempt.rank(chosen.randrange(4))
    if how == "rank" and rank is not None:
        with suppress(ProcessLookupError):  # it has come to its end
            os.kill(rank, signal.SIGKILL)
    elif how == "all":
        for child in children:
            with suppress(psutil.NoSuchProcess):  # a fork dies with the process that it is for
                child.kill()
        main.kill()
    elif how in ("term", "interrupt") and attempt.records.exists():  # Python itself has started
        main.send_signal(signal.SIGTERM if how == "term" else signal.SIGINT)
    else:
        main.kill()
        how = "main"
    _, alive = psutil.wait_procs(children, timeout=30)
    return how if not alive or how not in ("main", "all") else f"{how}, {len(alive)} left behind"


def run_case(
    case: str, folder: Path, kills: int, seed: int, command: Sequence[str] = COMMAND
) -> Tally:
    """Kill it so often, resume it to its end each time it has come there, and begin again."""
    tally, chosen = Tally(), random.Random(f"{case} {seed}")
    truth = Attempt(command, case, folder / "truth", 0)
    output = truth.end(PATIENCE_S)
    if truth.process.returncode or output is None:
        tally.fail(f"{case}: without a kill: {output}")
        return tally
    expected = hashes(truth.saved)
    number, life, attempts = 0, 0, 0
    while number < kills:
        life += 1
        while True:
            attempts += 1
            attempt = Attempt(command, case, folder / f"life-{life}", attempts)
            deadline = time.monotonic() + PATIENCE_S
            saves = chosen.randrange(5)
            if number < kills and attempt.wait_for(saves, deadline):
                time.sleep(chosen.random() * (0.05 if saves else 4.0))  # while it saves, or starts
                how = kill(attempt, chosen)
                number += 1
            else:
                how = ""
            output = attempt.end(PATIENCE_S)
            judge(case, attempt, output, how, tally)
            if tally.wrong or (not how and attempt.process.returncode == 0):
                break
        if tally.wrong:
            break
        judge_end(case, attempt, expected, tally)
        shutil.rmtree(folder / f"life-{life}", ignore_errors=True)
    return tally


def judge(case: str, attempt: Attempt, output: str | None, how: str, tally: Tally) -> None:
    """One attempt, killed or not."""
    after = position(attempt.saved)
    code = attempt.process.returncode
    print(f"{case}: {how or 'to its end'}, exit {code}, {attempt.before} -> {after}", flush=True)
    tally.counts["kills"] += bool(how)
    tally.counts[f"by {how}" if how else "runs to the end"] += 1
    said = f"{case} {attempt.records}: {how}, exit {code}:\n{output}"
    if output is None:
        tally.fail(f"hang: {said}")
    elif "Traceback" in output or ((attempt.records / "error.json").exists() and not how):
        tally.fail(f"traceback: {said}")
    elif "left behind" in how:
        tally.fail(f"orphans: {said}")
    elif not how and code:
        tally.fail(f"failed: {said}")
    elif after < attempt.before:
        tally.fail(f"a checkpoint was lost, {attempt.before} -> {after}: {said}")


def judge_end(case: str, attempt: Attempt, expected: dict[str, str], tally: Tally) -> None:
    """The files of the last checkpoint, and what is left beside it."""
    found = hashes(attempt.saved)
    tally.counts["hashes compared"] += len(found)
    if found != expected:
        tally.fail(f"{case}: other files than uninterrupted: {found}, not {expected}")
    else:
        print(f"{case}: the same files as uninterrupted", flush=True)
    hidden = [path.name for path in attempt.saved.iterdir() if path.name.startswith(".epoch")]
    if hidden:
        tally.fail(f"{case}: left behind: {hidden}")


def hashes(saved: Path) -> dict[str, str]:
    return {name: file_sha256(saved / f"epoch-{EPOCHS:04d}" / name) for name in FILES}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", default=",".join(CASES))
    words = parser.parse_args()
    cases, total = words.cases.split(","), Tally()
    for number, case in enumerate(cases):
        share = words.kills * (number + 1) // len(cases) - words.kills * number // len(cases)
        total.add(run_case(case, words.folder / case, share, words.seed))
    print(dict(total.counts))
    print("\n".join(total.wrong) or "nothing was wrong")
    return bool(total.wrong)


if __name__ == "__main__":
    sys.exit(main())
