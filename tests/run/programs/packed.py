"""Programs that train on a pack, prepared by readers; each rank saves what came of them.

Words: the folder of the pack; one for the results; names of cases.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import phalanx

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "threads": ({"readers": 3, "cache_mb": 1.0}, {"strategy": "shared"}),
    "processes": ({"reader_kind": "processes", "readers": 1}, {"micro_batches": 5}),
    "windows": ({"shuffle_shards": 2, "readers": 0}, {"strategy": "zero"}),
    "augmented": ({"augment": True, "train_samples": 51}, {"strategy": "server"}),
    "bitwise": ({"prefetch": 1}, {"bitwise": True}),
    "damaged": ({"damaged": "skip"}, {}),
    "staged": ({"stage_mb": 1.0}, {}),
}


def trained(pack: Path, name: str, folder: Path) -> dict[str, Tensor]:
    """Return parameters and scores."""
    reading, options = CASES[name]
    if name == "staged":
        reading = {**reading, "stage": folder / "stage"}
    torch.manual_seed(1)
    data = phalanx.Packed(pack, dtype="float64", **reading)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = phalanx.start(model, optimizer, data, batch_size=16, epochs=3, **options)
    scores = []
    for epoch in run.epochs():
        for batch in epoch:
            run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
        scores += [run.evaluate(score, data)[key] for key in ("loss", "right")]
    run.close()
    return {**model.state_dict(), "scores": torch.tensor(scores, dtype=torch.float64)}


def score(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    logits = model(batch[0])
    right = (logits.argmax(1) == batch[1]).double().mean()
    return {"loss": F.cross_entropy(logits, batch[1]), "right": right}


if __name__ == "__main__":
    pack, folder, *names = sys.argv[1:]
    results = {name: trained(Path(pack), name, Path(folder)) for name in names}
    torch.save(results, Path(folder) / f"{os.environ['RANK']}.pt")
