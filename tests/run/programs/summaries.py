"""Each rank: train a classifier with evaluations and summaries, then one whose gradients break.

Words: a folder for the records, in which each rank leaves what its runs say.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import phalanx
from phalanx.records.events import (
    EpochEvent,
    EvaluationEvent,
    SkippedEvent,
    SummaryEvent,
)
from phalanx.records.files import rank_file, read_events

SAMPLES, BATCH, EPOCHS = 53, 8, 2


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return inputs, (inputs.sum(1) * 2).long().clamp(0, 4)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5)).double()


def trained(folder: Path | None) -> dict[str, Any]:
    """Return what the run says of itself."""
    model, (inputs, targets) = network(), data()
    shown: list[SummaryEvent] = []
    run = phalanx.start(
        model,
        torch.optim.SGD(model.parameters(), lr=0.3),
        (inputs, targets),
        batch_size=BATCH,
        epochs=EPOCHS,
        run_dir=folder,
        records=phalanx.Records(counts_correct=True),
    )
    found: list[Any] = []
    for epoch in run.epochs():
        for batch in epoch:
            run.step(batch, cross_entropy)
        validation = run.validate((inputs[:21], targets[:21]), cross_entropy, batch_size=4)
        training = run.validate(run.some_samples(17), cross_entropy)
        run.summarize(validation, training=training, show=shown.append)
        found += [
            [validation.samples, validation.loss, validation.accuracy],
            [training.samples, training.loss, training.accuracy],
            [epoch.number, *run.position],
        ]
    assert bool(shown) == run.is_main, "by the one rank that writes them"
    summaries = [[s.train_loss, s.train_accuracy, s.validation_accuracy] for s in shown]
    assert run.resumed is None
    rank = run.rank
    run.close()
    counted: list[Any] = []
    if folder is not None:
        events = list(read_events(rank_file(folder, rank)))
        epochs = [e for e in events if isinstance(e, EpochEvent)]
        evaluations = [e for e in events if isinstance(e, EvaluationEvent)]
        assert sum(isinstance(e, SummaryEvent) for e in events) == EPOCHS * (rank == 0)
        counted = [[e.samples, e.correct, e.loss_sum] for e in (*epochs, *evaluations)]
    return {"found": found, "summaries": summaries, "counted": counted, "rank": rank}


class Broken(nn.Module):
    """Of a sample of zeros the output is finite, and its gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5, bias=False).double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.first(inputs).square().sum(1, keepdim=True).sqrt() + inputs[:, :5]


def skipped(folder: Path, strategy: str) -> str:
    """Return what is said of gradients that are not finite while every loss is: of the last sample,
    which the last rank has."""
    model, (inputs, targets) = Broken(), data()
    inputs[SAMPLES - 1] = 0
    loader = DataLoader(TensorDataset(inputs[-BATCH:], targets[-BATCH:]), batch_size=BATCH)
    run = phalanx.start(
        model,
        torch.optim.SGD(model.parameters(), lr=0.3),
        loader,
        strategy=strategy,  # type: ignore[arg-type]
        bad_gradients="skip",
        run_dir=folder,
    )
    for batch in run:
        run.step(batch, cross_entropy)
    rank = run.rank
    run.close()
    events = read_events(rank_file(folder, rank))
    (reason,) = (event.reason for event in events if isinstance(event, SkippedEvent))
    return reason


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    own = trained(folder / "run")
    own["skipped"] = {name: skipped(folder / name, name) for name in ("mpi", "shared", "zero")}
    (folder / f"own-{own.pop('rank')}.json").write_text(json.dumps(own))
