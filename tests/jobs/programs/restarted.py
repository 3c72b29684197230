"""Trains with checkpoints; each start of the ranks ends as the word for it says.

Words: folder for checkpoints and results, then `kill`, `launcher`, `freeze`,
`stop` or `fail` for each start.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW

import phalanx
from phalanx.jobs.restarts import RESTART
from phalanx.jobs.variables import launcher_process

TIMEOUT_S = float(os.environ.get("TEST_TIMEOUT_S", "60"))
STEPS_A_START = int(os.environ.get("TEST_STEPS", "7"))
CHECKPOINT_STEPS = int(os.environ.get("TEST_CHECKPOINT_STEPS", "2"))
STEP_S = float(os.environ.get("TEST_STEP_S", "0"))


def end(how: str) -> None:
    """End this rank, or what watches over it."""
    if how == "fail":
        raise ArithmeticError("wrong in every start")
    victim = launcher_process() if how in ("launcher", "freeze") else os.getpid()
    os.kill(victim, signal.SIGSTOP if how in ("stop", "freeze") else signal.SIGKILL)
    signal.pause()


def main(folder: Path, *ways: str) -> None:
    start = int(os.environ.get(RESTART, "0"))
    how, last = (ways[start] if start < len(ways) else ""), STEPS_A_START * (start + 1)
    if how == "fail":
        last = STEPS_A_START
    torch.manual_seed(5)
    data = torch.randn(81, 20), torch.randint(10, (81,))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))
    run = phalanx.start(
        model,
        AdamW(model.parameters(), lr=0.01),
        data,
        batch_size=16,
        micro_batches=8,
        bitwise=True,
        epochs=6,
        checkpoint_dir=folder / "checkpoints",
        checkpoints=phalanx.Checkpoints(every_steps=CHECKPOINT_STEPS or None),
        timeout_s=TIMEOUT_S,
    )
    for batch in run:
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
        time.sleep(STEP_S if how else 0)
        if how and run.rank == run.size - 1 and batch.ends_step and batch.step + 1 >= last:
            print(f"one of {run.size} ends", flush=True)
            end(how)
    sums = [value.double().sum().item() for value in model.state_dict().values()]
    if run.rank == 0:
        (folder / "result.json").write_text(json.dumps(sums))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
