"""A study's figures beside published ones. Pure but for `published`, which reads a file of ours.

Published values are only shown: nothing is computed from them, and no verdict is made of them. The
file holds what a source says, with the source; what has none is not in it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from phalanx.report.cells import Row
from phalanx.report.content import Column, words
from phalanx.report.format import fixed
from phalanx.report.training_frames import with_ends
from phalanx.report.values import TableSpec, View

KIND = "scaling"
MNIST_SAMPLES = 60_000
DATASETS = ("mnist", "digits")
"""Data sets of images of the same size: an epoch of as many takes as long."""


@cache
def published() -> list[Row]:
    """Return the rows of the file, each with its source."""
    rows: list[Row] = json.loads(Path(__file__).with_name("mnist.json").read_text())
    return rows


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
    others: list[Row] = [
        {**e, "differs": f"{e['differs']} Source: {e['source']}."} for e in published()
    ]
    return rows + others if own else []


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
