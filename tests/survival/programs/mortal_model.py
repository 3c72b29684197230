"""A model for `phalanx train` whose ranks die as the variable `DEATHS` says: [rank, when, what].

when: "seconds" since the first step, "evaluation" (its number), "checkpoint" (name of its hidden
folder, and the folder that it is in); "start", before it has a model; "failure", with an exit code,
in the first step; or "stop", the number of a micro-batch, in which it stops and does not end.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn

POLL_S = 0.0005
PATIENCE_S = 10.0


def die(how: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), how)


def die_later(rank: int, when: str, what: list[str] | float) -> None:
    """Die within the time, or as soon as the folder is there."""
    if isinstance(what, list):
        hidden = Path(what[1]) / what[0]
        while not hidden.exists():
            time.sleep(POLL_S)
        mark_of(rank, hidden).touch()
    else:
        time.sleep(what)
    die()


def mark_of(rank: int, hidden: Path) -> Path:
    """A file that says that the rank dies now."""
    return hidden.parents[1] / f"dies-{rank}{hidden.name}"


def wait_for_deaths(deaths: list[Any]) -> None:
    """Rename no hidden folder before those who die by it have seen it: a busy machine may have let
    none of them look while it was there.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "os.rename":
            return
        for rank, when, what in deaths:
            if when == "checkpoint" and Path(arguments[0]).name == what[0]:
                deadline = time.monotonic() + PATIENCE_S
                mark = mark_of(rank, Path(what[1]) / what[0])
                while not mark.exists() and time.monotonic() < deadline:
                    time.sleep(POLL_S)

    sys.addaudithook(hook)


class Mortal(nn.Module):
    """A network with random numbers and running statistics."""

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Flatten(),
            nn.Linear(num_inputs, 32),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(32, num_classes),
        )
        rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "-1"))
        deaths = json.loads(os.environ.get("DEATHS", "[]"))
        self.rank, self.deaths = rank, [tuple(d[1:]) for d in deaths if d[0] == rank]
        if any(when == "checkpoint" for _, when, _ in deaths):
            wait_for_deaths(deaths)
        if "start" in [when for when, _ in self.deaths]:
            die()
        self.was_training, self.num_evaluations, self.num_micro_batches = False, 0, 0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and not self.was_training:
            for when, what in self.deaths:
                if when == "failure":
                    os._exit(what)
                if when not in ("evaluation", "stop") and not self.num_evaluations:
                    words = (self.rank, when, what)
                    threading.Thread(target=die_later, args=words, daemon=True).start()
        if self.was_training and not self.training:
            self.num_evaluations += 1
            if ("evaluation", self.num_evaluations) in self.deaths:
                die()
        self.num_micro_batches += self.training
        if ("stop", self.num_micro_batches) in self.deaths:
            die(signal.SIGSTOP)
        self.was_training = self.training
        return self.network(inputs)


def make(inputs: tuple[int, ...], num_classes: int) -> nn.Module:
    num_inputs = 1
    for size in inputs:
        num_inputs *= size
    return Mortal(num_inputs, num_classes)
