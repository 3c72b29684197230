"""Cost of checkpoints to training: none, written while training waits, written by a thread.

    python benchmarks/checkpoints.py                        # one process, some two minutes
    phalanx launch -n 2 benchmarks/checkpoints.py           # two ranks
    … benchmarks/checkpoints.py --quick                     # few rounds

AdamW trains a transformer's feed-forward layers of 6 million parameters (72 MB per checkpoint),
with one thread per rank and one checkpoint every 10 steps. The three ways take turns, in runs of 40
steps each, so that a busy machine slows all of them.

Reported, as medians over the rounds: seconds per step, over the full run with the wait for the last
checkpoint; per checkpoint the time for which training waited, and the time of writing. Raw times,
commit and machine go to runs/benchmarks/checkpoints.json.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import AdamW

import phalanx
from harness import save
from phalanx.jobs.orphan import JOB_VARIABLE
from phalanx.records.events import SavedEvent
from phalanx.records.files import read_events

STEPS, EVERY, BATCH, WIDTH, LAYERS = 40, 10, 32, 512, 3
ROUNDS, QUICK_ROUNDS = 8, 1
WAYS = ("none", "waiting", "thread")


class Times(NamedTuple):
    """Seconds of one run: per step, and per checkpoint the wait of training and the writing."""

    step_s: float
    held_s: list[float]
    written_s: list[float]
    bytes: int


def train(way: str, folder: Path) -> Times:
    """Train once, with checkpoints written in this way. Collective."""
    torch.manual_seed(0)
    wide = [(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))] * LAYERS
    layers = [module for each in wide for module in map(_copy, each)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    saving: dict[str, Any] = {} if way == "none" else {
        "checkpoint_dir": folder / "saved",
        "checkpoints": phalanx.Checkpoints(every_steps=EVERY, in_thread=way == "thread"),
    }  # fmt: skip
    data = torch.randn(STEPS * BATCH, WIDTH), torch.randint(10, (STEPS * BATCH,))
    run = phalanx.start(
        model, AdamW(model.parameters()), data, batch_size=BATCH, run_dir=folder / "run", **saving
    )
    began = 0.0
    for batch in run:
        if batch.step == 2 and not began:  # the first steps allocate memory
            began = time.perf_counter()
        run.backward(nn.functional.cross_entropy(run.model(batch.inputs), batch.targets))
    step_s = (time.perf_counter() - began) / (STEPS - 2)
    rank = run.rank
    run.close()
    events = [] if rank else [*read_events(folder / "run" / "rank-0.jsonl")]
    saved = [event for event in events if isinstance(event, SavedEvent)]
    return Times(
        step_s,
        [event.save_s for event in saved],
        [event.written_s for event in saved if event.written_s is not None],
        max((event.bytes for event in saved), default=0),
    )


def _copy(module: nn.Module) -> nn.Module:
    if not isinstance(module, nn.Linear):
        return module
    return nn.Linear(module.in_features, module.out_features)


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    times: dict[str, list[Times]] = {way: [] for way in WAYS}
    job = os.environ.get(JOB_VARIABLE, str(os.getpid())).partition("/")[0]  # the same on all ranks
    place = Path(tempfile.gettempdir()) / f"phalanx-checkpoints-{job}"
    for number in range(rounds + 1):
        for way in WAYS:
            folder = place / f"{number}-{way}"
            folder.mkdir(exist_ok=True, parents=True)
            times[way].append(train(way, folder))
    is_main = bool(times["waiting"][0].held_s)  # rank 0 alone has records of checkpoints
    if is_main:
        report({way: runs[1:] for way, runs in times.items()})  # the first warms up
        shutil.rmtree(place)


def report(times: dict[str, list[Times]]) -> None:
    base = statistics.median(run.step_s for run in times["none"])
    for way, runs in times.items():
        step_s = statistics.median(run.step_s for run in runs)
        held = [seconds for run in runs for seconds in run.held_s]
        written = [seconds for run in runs for seconds in run.written_s]
        print(
            f"{way:8} step {1e3 * step_s:6.1f} ms ({step_s / base:.3f})"
            + (f", held {1e3 * statistics.median(held):6.1f} ms a checkpoint" if held else "")
            + (f", written in {1e3 * statistics.median(written):6.1f} ms" if written else "")
        )
    save(
        __file__,
        steps=STEPS,
        every=EVERY,
        bytes=times["waiting"][0].bytes,
        times={way: [run._asdict() for run in runs] for way, runs in times.items()},
    )


if __name__ == "__main__":
    main(QUICK_ROUNDS if "--quick" in sys.argv else ROUNDS)
