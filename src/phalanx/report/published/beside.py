"""A study's figures beside published ones. Pure but for `published`, which reads a file of ours.

Published values are only shown: nothing is computed from them, and no verdict is made of them. The
file holds what a source says, with the source; what has none is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from phalanx.report.comparison import Cell
from phalanx.report.content import Table, by_place, make_table
from phalanx.report.format import fixed
from phalanx.report.tables import speed_up_words

MNIST_SAMPLES = 60_000
DATASETS = ("mnist", "digits")
"""Of images of the same size: an epoch of as many takes as long."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    study: str
    source: str
    model: str
    split: str
    epoch_s: float | None
    epoch_words: str  # as the source has it
    speed_up: float | None
    differs: str  # from what is measured here, as far as the source tells


@cache
def published() -> tuple[Published, ...]:
    path = Path(__file__).with_name("mnist.json")
    return msgspec.json.decode(path.read_bytes(), type=tuple[Published, ...])


def beside_published(cells: Sequence[Cell]) -> Table:
    """Return a table of the study's configurations on such images, and of published results."""
    known = [(cell, cell.images_per_s) for cell in cells if cell.workload.dataset in DATASETS]
    own = [(cell, rate) for cell, rate in known if rate is not None]
    rows: list[tuple[str | None, ...]] = [
        (
            "this study",
            cell.workload.model,
            cell.layout.phrase,
            fixed(MNIST_SAMPLES / rate),
            speed_up_words(cell),
            "",
        )
        for cell, rate in own
    ]
    rows += [
        (
            entry.study,
            entry.model,
            entry.split,
            entry.epoch_words,
            None if entry.speed_up is None else f"{entry.speed_up:.2f}",
            f"{entry.differs} Source: {entry.source}.",
        )
        for entry in published()
        if own
    ]
    return make_table(
        "Beside published studies",
        "Seconds of an epoch of 60,000 images of 28 \N{MULTIPLICATION SIGN} 28: of this study from "
        "its images/s, of others as they say. Machines, models, batches and years differ, so these "
        "say what to expect, not who is faster.",
        by_place("study|model|split|epoch of 60,000 (s)#|speed-up#|what differs"),
        rows,
    )
