"""Bitwise runs in which something is wrong, and one in which nothing is.

Words: a folder for what each has found; checkpoints after the first two steps.
"""

import contextlib
import io
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import phalanx
from phalanx.errors import UserError
from phalanx.gradients.tree_reducer import TreeReducer
from phalanx.parallel import replicas
from phalanx.parallel.sharded_state import ShardedState
from phalanx.torch_backend.tensors import buffer_of

SAMPLES, BATCH, STEPS = 64, 16, 4
RANK = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


def train(flipped_at: int | None = None, **options: Any) -> str:
    """Return the line of the certificate, of rank 0, or the error.

    flipped_at: step with which one bit of one parameter changes.
    """
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 3))
    data = (torch.randn(SAMPLES, 6), torch.randint(3, (SAMPLES,)))
    said = io.StringIO()
    options = {"micro_batches": 8, "bitwise": True, **options}
    optimizer, made = SGD(model.parameters(), lr=0.3), itertools.count()

    def flip_one(*_: object) -> None:
        if next(made) == flipped_at:
            flip(model[3].weight)

    if flipped_at is not None:
        optimizer.register_step_post_hook(flip_one)
    try:
        run = phalanx.start(model, optimizer, data, batch_size=BATCH, **options)
    except UserError as error:
        return str(error)
    try:
        with contextlib.redirect_stdout(said):
            for batch in run:
                run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
            run.close()
    except UserError as error:
        run._strategy.close()
        return str(error)
    return said.getvalue()


def flip(tensor: Tensor) -> None:
    """Change the last bit of the first value."""
    with torch.no_grad():
        tensor.view(torch.int32).view(-1)[0] ^= 1


class LinearReducer(TreeReducer):
    """A wrong one: a rank adds its micro-batches up from left to right, then ranks add theirs."""

    def begin_step(self, leaves: Collection[int]) -> None:
        super().begin_step(leaves)
        self._totals = [torch.zeros_like(like) for like in self._likes]

    def _add(self, _: int, tensors: list[Tensor]) -> None:
        for total, tensor in zip(self._totals, tensors, strict=True):
            total += tensor

    def _sum(self) -> list[Tensor]:
        for total in self._totals if self._world is not None else ():
            self._world.group.all_reduce(buffer_of(total))
        return self._totals


def counted_twice(
    end_micro_batch: Callable[[TreeReducer], None],
) -> Callable[[TreeReducer], None]:
    def mutation(reducer: TreeReducer) -> None:
        if reducer._micro_batch == 5:
            for parameter in reducer._parameters:
                parameter.grad *= 2
        end_micro_batch(reducer)

    return mutation


@contextlib.contextmanager
def changed(owner: object, name: str, value: object) -> Iterator[None]:
    with mock.patch.object(owner, name, value):
        yield


def found(checkpoint: Path | None = None) -> dict[str, str]:
    """checkpoint: to resume from; None: the one that the first two steps make."""
    results = {"right": train()}
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is None:
            train(steps=2, checkpoint_dir=folder)
        results["resumed"] = train(resume=checkpoint or folder)
        results["resumed, cut otherwise"] = train(resume=checkpoint or folder, micro_batches=4)
    with changed(TreeReducer, "end_micro_batch", counted_twice(TreeReducer.end_micro_batch)):
        results["counted twice"] = train()
    assert replicas.TreeReducer is TreeReducer
    with changed(replicas, "TreeReducer", LinearReducer):
        results["order of ranks"] = train()
    with changed(ShardedState, "_share_updates", lambda _: None):
        results["updates kept"] = train(strategy="zero")
    results["flipped on one rank"] = train(flipped_at=STEPS - 1 if RANK == 1 else None)
    return results


if __name__ == "__main__":
    results = found(Path(sys.argv[2]))
    (Path(sys.argv[1]) / f"{RANK}.json").write_text(json.dumps(results))
