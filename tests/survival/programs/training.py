"""Trains with checkpoints and evaluations; some of the original ranks die at random moments.

Words: folder for the results, seed of the deaths, their number, seconds in which they come.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import phalanx
from phalanx.launch.leftovers import mapped_files

MICRO_BATCHES, BATCH, SAMPLES = 8, 32, 81  # the last global batch has 17 samples


def die_later(folder: Path, seed: int, deaths: int, seconds: float) -> None:
    """Have this rank die if it is one of those drawn."""
    rank, drawn = int(os.environ.get("RANK", "0")), random.Random(seed)
    victims = drawn.sample(range(int(os.environ.get("WORLD_SIZE", "1"))), deaths)
    moments = [drawn.uniform(0, seconds) for _ in victims]
    if rank in victims:
        moment = moments[victims.index(rank)]

        def die() -> None:
            time.sleep(moment)
            (folder / f"killed-{rank}").touch()
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=die, daemon=True).start()


def error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets)


def main(folder: Path, seed: int, deaths: int, seconds: float) -> None:
    torch.manual_seed(5)
    data = torch.randn(SAMPLES, 20), torch.randint(10, (SAMPLES,))
    model = nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10)
    )
    run = phalanx.start(
        model,
        AdamW(model.parameters(), lr=0.01),
        data,
        batch_size=BATCH,
        micro_batches=MICRO_BATCHES,
        bitwise=True,
        epochs=40,
        checkpoint_dir=folder / "checkpoints",
        checkpoint_steps=3,
        timeout_s=60,
    )
    mapped = [str(path) for path in mapped_files(os.getpid()) if path.parts[1] == "dev"]
    (folder / f"mapped-{os.environ.get('RANK', '0')}").write_text("\n".join(mapped))
    die_later(folder, seed, deaths, seconds)
    steps, errors = 0, []
    for batch in run:
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
        steps += batch.ends_step
        if batch.ends_epoch:
            errors.append(run.evaluate(error, data))
    rows = run._group.gather([1.0])
    assert rows is not None, "whoever is rank 0 next has them"
    result = {
        "steps": steps,
        "errors": errors,
        "loss": run.training_loss(),
        "sums": [value.double().sum().item() for value in model.state_dict().values()],
    }
    (folder / f"result-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
