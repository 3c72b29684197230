"""Rows of the global batch on every rank, or a refusal that says what works.

`test_truth.py` compares updates on several ranks with those of one process.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import phalanx
from phalanx.parallel.run_group import RunGroup
from phalanx.run.batch import MicroBatch
from phalanx.run.gather import gather_rows

DATA = torch.randn(12, 4)


def one_batch(**options: Any) -> tuple[phalanx.ProgramRun, MicroBatch]:
    model = nn.Linear(4, 4)
    given = {"batch_size": 6, **options}
    run = phalanx.start(model, SGD(model.parameters(), lr=0.1), DATA, **given)
    return run, next(iter(run))


@pytest.mark.usefixtures("restored_settings")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bitwise": True}, "bitwise=True and --survive compute its micro-batches one after"),
        ({"micro_batches": 2}, "micro_batches=2 are computed one after the other on 1 rank: leave"),
        ({"strategy": "local"}, 'strategy="local" trains each rank on separate samples'),
    ],
)
def test_a_batch_that_is_not_computed_at_once_is_refused(options: Any, text: str) -> None:
    """Each micro-batch would have a loss over its own rows: another one for every cut."""
    run, batch = one_batch(**options)
    with pytest.raises(phalanx.UserError, match=text):
        run.gather(run.model(batch.data))


@pytest.mark.parametrize("rows", [torch.ones(12, 4), torch.tensor(1.0), 1.0])
def test_rows_are_those_of_the_samples(rows: object) -> None:
    """Two views below each other would be in an order that depends on the ranks."""
    run, batch = one_batch()
    with pytest.raises(phalanx.UserError, match="takes one row for each of the 6 samples"):
        run.gather(rows)  # type: ignore[arg-type]
    assert run.gather(batch.data) is batch.data


def test_it_is_for_the_loop() -> None:
    run, batch = one_batch()
    run.backward(run.model(batch.data).square().mean())
    with pytest.raises(phalanx.UserError, match="for the micro-batches of the run's loop"):
        run.gather(batch.data)


class WithAnother(RunGroup):
    """A group of two, of whom the other gives three rows of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 2

    def sum(self, values: Sequence[float]) -> list[float]:
        return [*values[:2], 3.0, 1.0]


def test_rows_of_another_shape_are_named_on_every_rank() -> None:
    """Ranks whose micro-batches were padded to lengths of their own wrote over each other."""
    _, batch = one_batch()
    with pytest.raises(
        phalanx.UserError, match=r"rows are float32 \(4,\), without .* different on rank 1"
    ):
        gather_rows(WithAnother(), batch, batch.data)
