"""Trains with checkpoints and evaluations; some of the original ranks fail at random moments.

Words: folder for the results, seed of the failures, their number, seconds in which they come, and
their kinds in turn: `kill` (default), `stop`, `pause` (for half a second), `loop` (for ever).
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import phalanx
from phalanx.jobs.leftovers import mapped_files

MICRO_BATCHES, BATCH, SAMPLES = 8, 32, 81  # the last global batch has 17 samples
PAUSE_S = 0.5
LOOPS, OVER = threading.Event(), threading.Event()


def fail(kind: str) -> None:
    """Fail in this moment, as the word says."""
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "loop":
        LOOPS.set()
    else:
        if kind == "pause":
            subprocess.Popen(["sh", "-c", f"sleep {PAUSE_S}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)


def fail_later(folder: Path, seed: int, number: int, seconds: float, kinds: list[str]) -> None:
    """Have this rank fail if it is one of those drawn."""
    rank, drawn = int(os.environ.get("RANK", "0")), random.Random(seed)
    victims = drawn.sample(range(int(os.environ.get("WORLD_SIZE", "1"))), number)
    moments = [drawn.uniform(0, seconds) for _ in victims]
    if rank in victims:
        place = victims.index(rank)
        moment, kind = moments[place], kinds[place % len(kinds)]

        def wait() -> None:
            if not OVER.wait(moment) or kind == "kill":
                if kind != "pause":
                    (folder / f"killed-{rank}").touch()
                fail(kind)

        threading.Thread(target=wait, daemon=True).start()


def error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets)


def main(folder: Path, seed: int, number: int, seconds: float, kinds: list[str]) -> None:
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
        checkpoints=phalanx.Checkpoints(every_steps=3),
        timeout_s=60,
    )
    mapped = [str(path) for path in mapped_files(os.getpid()) if path.parts[1] == "dev"]
    (folder / f"mapped-{os.environ.get('RANK', '0')}").write_text("\n".join(mapped))
    if kinds == ["kill"]:
        fail_later(folder, seed, number, seconds, kinds)
    steps, errors = 0, []
    for batch in run:
        while LOOPS.is_set():
            pass
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
        steps += batch.ends_step
        if steps == 1 and batch.ends_step and kinds != ["kill"]:  # ranks are watched from now on
            fail_later(folder, seed, number, seconds, kinds)
        if batch.ends_epoch:
            errors.append(run.evaluate(error, data))
    OVER.set()
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
    folder, seed, number, seconds, *kinds = sys.argv[1:]
    main(Path(folder), int(seed), int(number), float(seconds), kinds or ["kill"])
