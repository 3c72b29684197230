"""A study's figures beside published ones. Pure but for `published`, which reads a file of ours.

Published values are only shown: nothing is computed from them, and no verdict is made of them. The
file holds what a source says, with the source; what has none is not in it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from phalanx.report.cells import Row
from phalanx.report.content import Column, words
from phalanx.report.format import fixed
from phalanx.report.training_tables import with_ends
from phalanx.report.values import TableSpec, View

KIND = "scaling"
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


def published_rows(view: View) -> list[Row]:
    """Return a row a configuration of a scaling study on such images, and a published result."""
    cells = view.frame("cells") if view.data.study.kind == KIND else []
    own = [row for row in cells if row["dataset"] in DATASETS and row["rate"] is not None]
    rows: list[Row] = [
        {
            "study": "this study",
            "model": row["panel"],
            "split": row["phrase"],
            "epoch": fixed(MNIST_SAMPLES / row["rate"]),
            "speed_up": with_ends("speed_up")(row),
            "differs": "",
        }
        for row in own
    ]
    return rows + [
        {
            "study": entry.study,
            "model": entry.model,
            "split": entry.split,
            "epoch": entry.epoch_words,
            "speed_up": None if entry.speed_up is None else f"{entry.speed_up:.2f}",
            "differs": f"{entry.differs} Source: {entry.source}.",
        }
        for entry in published()
        if own
    ]


BESIDE_PUBLISHED = TableSpec(
    title="Beside published studies",
    note="Seconds of an epoch of 60,000 images of 28 \N{MULTIPLICATION SIGN} 28: of this study "
    "from its images/s, of others as they say. Machines, models, batches and years differ, so "
    "these say what to expect, not who is faster.",
    frame="published",
    columns=(
        *(words("study", "study"), words("model", "model"), words("split", "split")),
        *(Column("epoch of 60,000 (s)", "epoch"), Column("speed-up", "speed_up")),
        words("what differs", "differs"),
    ),
)
