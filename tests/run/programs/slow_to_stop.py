"""Trains with a checkpoint every other step; from its ninth step on it is slow to stop.

Words: folder, and what takes a minute from then on: `step`, `checkpoint` (its writing), or nothing.
"""

import functools
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW

import phalanx
from phalanx.checkpoints import checkpoint
from phalanx.checkpoints.manifest import write_manifest

FAST_STEPS, STEPS, SLOW_S = 8, 12, 60.0


@functools.wraps(write_manifest)
def write_late(*words: Any, **options: Any) -> Any:
    """Write the last file of a checkpoint after all others, as a slow disk does."""
    time.sleep(SLOW_S)
    return write_manifest(*words, **options)


def main(folder: Path, slow: str = "") -> None:
    torch.manual_seed(5)
    data = torch.randn(64, 20), torch.randint(10, (64,))
    model = nn.Linear(20, 10)
    run = phalanx.start(
        model,
        AdamW(model.parameters(), lr=0.01),
        data,
        batch_size=16,
        epochs=STEPS // 4,
        checkpoint_dir=folder / "checkpoints",
        checkpoints=phalanx.Checkpoints(every_steps=2),
        resume="auto",
    )
    for batch in run:
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
        if not slow or batch.step < FAST_STEPS:
            continue
        if slow == "checkpoint":
            checkpoint.write_manifest = write_late  # type: ignore[assignment]
        (folder / f"slow-{run.rank}").touch()
        time.sleep(SLOW_S if slow == "step" else 0.2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
