"""Trainings of `programs/counting.py`, and what their ranks have left."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import ONE_THREAD, PATIENCE, forked_python
from tests.survival.deaths import Death

PROGRAM = Path(__file__).parent / "programs" / "counting.py"
RANKS, SAMPLES, EPOCHS = 4, 81, 12
Ledger = list[tuple[int, int, list[float]]]
"""Epoch, step, and how often each sample counted in its sums; by steps."""


class Trained(NamedTuple):
    """By original rank, also of those that died."""

    killed: dict[int, str]
    """Moments."""
    results: dict[int, dict[str, Any]]
    ledgers: dict[int, Ledger]
    computed: Counter[tuple[int, tuple[int, ...]]]
    """Micro-batches of all ranks: step, and the numbers of the samples."""
    said: str
    shown: str
    """Of the first of the ranks that were left."""
    code: int

    @property
    def num_repeated(self) -> int:
        """Micro-batches that were computed again, because their gradients died with a rank."""
        return self.computed.total() - len(self.computed)


def train_alone(folder: Path, *words: str) -> Trained:
    """Train in one process, undisturbed."""
    command = [str(forked_python()), str(PROGRAM), str(folder), "[]", *words]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
        env={**os.environ, **ONE_THREAD},
    )
    assert done.returncode == 0, done.stderr
    return read(folder, done)


def train(
    command: Sequence[str],
    folder: Path,
    deaths: Sequence[Death],
    *mutations: str,
    restarts: int = 0,
    ranks: int = RANKS,
    spares: int = 0,
) -> Trained:
    """Train on ranks of which some die. command: `phalanx`, and its first words: ranks are forks.
    restarts: how many there may be where nobody is left."""
    python = command[-1]
    options = ["--survive", "--threads", "1", "--log-dir", str(folder / "logs"), "-n", str(ranks)]
    options += ["--restarts", str(restarts)] if restarts else []
    options += ["--spares", str(spares)] if spares else []
    program = [python, str(PROGRAM), str(folder), json.dumps(deaths), *mutations]
    done = subprocess.run(
        [*command, "launch", *options, *program],
        capture_output=True,
        text=True,
        timeout=90 * PATIENCE,
        check=False,
    )
    return read(folder, done)


def read(folder: Path, done: subprocess.CompletedProcess[str]) -> Trained:
    lines = {path: path.read_text().splitlines() for path in folder.glob("co*ted-*")}
    computed = [
        (step, tuple(numbers))
        for path, text in lines.items()
        if path.name.startswith("computed")
        for step, numbers in map(json.loads, text)
    ]
    return Trained(
        killed={number(path): path.read_text() for path in folder.glob("killed-*")},
        results={number(path): json.loads(path.read_text()) for path in folder.glob("result-*")},
        ledgers={
            number(path): [json.loads(line) for line in text]
            for path, text in lines.items()
            if path.name.startswith("counted")
        },
        computed=Counter(computed),
        said=done.stderr,
        shown=done.stdout,
        code=done.returncode,
    )


def number(path: Path) -> int:
    return int(path.stem.split("-")[1])


def miscounted(ledger: Ledger) -> list[str]:
    """Return which samples did not count once in an epoch."""
    found = []
    for epoch in range(EPOCHS):
        rows = [times for its_epoch, _, times in ledger if its_epoch == epoch]
        sums = [round(sum(row[sample] for row in rows), 6) for sample in range(SAMPLES)]
        found += [
            f"epoch {epoch}: sample {sample} counted {times:g} times"
            for sample, times in enumerate(sums)
            if times != 1
        ]
    return found


def differences(ledger: Ledger, truth: Ledger) -> list[str]:
    """Return which samples counted otherwise in a step, as far as the ledger goes."""
    return [
        f"step {step}: sample {sample} counted {times:g} times, not {right:g}"
        for (_, step, row), (_, _, right_row) in zip(ledger, truth, strict=False)
        for sample, (times, right) in enumerate(zip(row, right_row, strict=True))
        if times != right
    ]
