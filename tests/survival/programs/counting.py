"""Trains with checkpoints and evaluations; some of the original ranks die.

Words: folder for the results; deaths as `dying.py` takes them, in JSON; names of mutations of the
engine, and of a strategy; "several" or "alternating" for two optimizers with a scheduler each,
which step together or in turn; "readers" for samples that other processes read.

The model has a parameter of one number a sample, whose gradient says how often each sample counts
in the sums of a step. Ranks that are started again go on from the newest checkpoint, and do not
die again.
"""

import functools
import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from dying import Dying
from mutations import MUTATIONS
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler
from torch.utils.data import Dataset

import phalanx
from phalanx.jobs.leftovers import mapped_files
from phalanx.jobs.restarts import is_restart

MICRO_BATCHES, BATCH, SAMPLES = 8, 32, 81  # the last global batch has 17 samples
EPOCHS, CHECKPOINT_STEPS = 12, 2
STRATEGIES = ("mpi", "zero", "shared")
SEVERAL = ("several", "alternating")
RANK = int(os.environ.get("RANK", "0"))


class Counting(nn.Module):
    """A network, and the parameter that counts samples."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10)
        )
        self.counted = nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network(inputs)


class Noisy(Dataset[tuple[Tensor, Tensor, int]]):
    """The same samples, each with noise of its own."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._inputs, self._targets = inputs, targets

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        row = self._inputs[index]
        return row + 0.1 * torch.randn(row.shape), self._targets[index], index


def optimizers_of(
    model: Counting, kind: str | None
) -> tuple[dict[str, Optimizer], list[LRScheduler]]:
    network, counted = list(model.network.parameters()), [model.counted]
    if kind is None:
        groups = [{"params": network}, {"params": counted, "lr": 0.0}]
        return {"": AdamW(groups, lr=0.01)}, []
    optimizers = {"network": AdamW(network, lr=0.01), "counts": AdamW(counted, lr=0.0)}
    return optimizers, [ExponentialLR(optimizer, 0.99) for optimizer in optimizers.values()]


def main(folder: Path, dying: Dying, strategy: str, kind: str | None, *, has_readers: bool) -> None:
    torch.manual_seed(5)
    inputs, targets = torch.randn(SAMPLES, 20), torch.randint(10, (SAMPLES,))
    data, model = (inputs, targets, torch.arange(SAMPLES)), Counting()
    optimizers, schedulers = optimizers_of(model, kind)
    *_, optimizer = optimizers.values()
    step = optimizer.step

    @functools.wraps(step)
    def counted_step() -> None:
        if model.counted.grad is not None:  # else held by other ranks
            times = (model.counted.grad * batch.global_samples).tolist()
            print(json.dumps([batch.epoch, batch.step, times]), file=counted, flush=True)
        step()

    optimizer.step = counted_step
    dying.follow(optimizer)
    run = phalanx.start(
        model,
        optimizers if kind else optimizer,
        Noisy(inputs, targets) if has_readers else data,
        loading={"num_workers": 1} if has_readers else None,
        scheduler=schedulers,
        alternate=list(optimizers) if kind == "alternating" else (),
        clip_norm=1.0 if kind else None,
        batch_size=BATCH,
        micro_batches=MICRO_BATCHES,
        bitwise=True,
        strategy=strategy,
        epochs=EPOCHS,
        checkpoint_dir=folder / "checkpoints",
        checkpoints=phalanx.Checkpoints(every_steps=CHECKPOINT_STEPS),
        timeout_s=60,
    )
    mapped = [str(path) for path in mapped_files(os.getpid()) if path.parts[1] == "dev"]
    (folder / f"mapped-{RANK}").write_text("\n".join(mapped))

    def error(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        dying.enter("evaluation")
        return F.cross_entropy(model(batch[0]), batch[1])

    errors = run.state.setdefault("errors", [])
    counted = (folder / f"counted-{RANK}").open("a")
    with counted, (folder / f"computed-{RANK}").open("a") as computed:
        for batch in run:
            inputs, targets, numbers = batch.data
            losses = {
                "network": F.cross_entropy(run.model(inputs), targets),
                "counts": model.counted[numbers].mean(),
            }
            print(json.dumps([batch.step, numbers.tolist()]), file=computed, flush=True)
            dying.enter("time")
            dying.enter("batch")
            if kind == "several":
                for name, loss in losses.items():
                    run.backward(loss, optimizer=name)
            else:
                run.backward(losses[batch.optimizer] if batch.optimizer else sum(losses.values()))
            if batch.ends_epoch:
                errors.append(run.evaluate(error, data))
    rows = run._group.gather([1.0])
    assert rows is not None, "whoever is rank 0 next has them"
    values = [value.numpy().tobytes() for value in model.state_dict().values()]
    result = {
        "errors": errors,
        "sha256": hashlib.sha256(b"".join(values)).hexdigest(),
    }
    if not is_restart():  # which may have begun within the last epoch
        result["loss"] = run.training_loss()
    (folder / f"result-{RANK}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    names, place = sys.argv[3:], Path(sys.argv[1])
    for name in names:
        if name not in (*STRATEGIES, *SEVERAL, "readers"):
            MUTATIONS[name]()
    main(
        place,
        Dying(place, RANK, json.loads(sys.argv[2])),
        next((name for name in names if name in STRATEGIES), "auto"),
        next((name for name in names if name in SEVERAL), None),
        has_readers="readers" in names,
    )
