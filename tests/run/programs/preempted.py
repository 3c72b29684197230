"""Trains bit by bit the same on any number of ranks, and goes on where it was stopped.

Words: folder, number of epochs, seconds for which each step sleeps.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import phalanx
from phalanx.checkpoints.checkpoint import state_sha256


def error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def main(folder: Path, epochs: int, sleep_s: float) -> None:
    (folder / f"process-{os.environ.get('RANK', '0')}").write_text(str(os.getpid()))
    torch.manual_seed(5)
    data = torch.randn(81, 20), torch.randint(10, (81,))
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10))
    optimizer = AdamW(model.parameters(), lr=0.01)
    run = phalanx.start(
        model,
        optimizer,
        data,
        batch_size=16,
        micro_batches=8,
        bitwise=True,
        epochs=epochs,
        checkpoint_dir=folder / "checkpoints",
        checkpoints=phalanx.Checkpoints(every_seconds=0.3, keep=2),
        resume="auto",
        timeout_s=60,
    )
    errors: list[float] = run.state.setdefault("errors", [])
    for epoch in run.epochs():
        for batch in epoch:
            run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
            if batch.ends_step:
                time.sleep(sleep_s)
            if batch.step == 2:
                (folder / "trains").touch()
        errors = run.state["errors"]
        if len(errors) <= epoch.number:  # else noted before the run was stopped
            errors.append(run.evaluate(error, data))
    if run.rank == 0:
        text = f"{state_sha256(model, optimizer)} {errors}"
        (folder / "result").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
