"""The page of a scaling study, of a run, or of runs that belong to no study."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from phalanx.report import training_frames as tables
from phalanx.report import training_page as of_training
from phalanx.report.cells import Cell, CellPanel, Row, baseline
from phalanx.report.claims import (
    AgainstBaseline,
    CellClaim,
    compared,
    key_figures,
    largest_gain,
    mean_share,
)
from phalanx.report.content import Column, words
from phalanx.report.format import ends, fixed, whole_percent
from phalanx.report.schemes import scheme_phrase
from phalanx.report.statistics import mean_interval
from phalanx.report.training import reader
from phalanx.report.training_frames import BETWEEN, FRAMES, with_ends
from phalanx.report.training_page import (
    BEST,
    BEST_AGAINST_THREADS,
    COMMUNICATION,
    EPOCH,
    FARTHEST_ACCURACY,
    FASTEST,
    main,
    shown,
)
from phalanx.report.values import ChartSection, Page, TableSpec, Told, View

KIND = "scaling"
PUBLISHED = Path(__file__).parents[1] / "published" / "mnist.json"
"""Values as their source says them, with the source; what has none is not in it."""
MNIST_SAMPLES = 60_000
DATASETS = ("mnist", "digits")
"""Data sets of images of the same size: an epoch of as many takes as long."""


@cache
def published() -> list[Row]:
    """Return the rows of the file, each with its source."""
    rows: list[Row] = json.loads(PUBLISHED.read_text())
    return rows


def published_rows(view: View) -> list[Row]:
    """Return a row a configuration of a scaling study on such images, and a published result.

    Published values are only shown: nothing is computed from them, and no verdict is made of them.
    """
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
    note="Seconds per epoch of 60,000 images of 28 \N{MULTIPLICATION SIGN} 28: for this study from "
    "its images/s, for others as published. Machines, models, batches and years differ, so these "
    "show what to expect, not which is faster.",
    frame="published",
    columns=(
        *(words("study", "study"), words("model", "model"), words("split", "split")),
        *(Column("epoch of 60,000 (s)", "epoch"), Column("speed-up", "speed_up")),
        words("what differs", "differs"),
    ),
)


# -- Claims ----------------------------------------------------------------------------------------


MOST_WAITING = 0.30
"""Share of the training time that communication may take."""


class Wall(CellClaim):
    """The first of growing numbers of ranks and threads that is seen to take longer than the one
    before, or to spend more than a share of its time waiting."""

    def of(self, panel: CellPanel) -> Iterator[Told]:
        lines: dict[str, list[Cell]] = {}
        for cell in sorted(panel.cells, key=lambda cell: (cell["ranks"], cell["threads"])):
            lines.setdefault(cell["line"], []).append(cell)
        for line, cells in lines.items():
            if len(cells) > 1:
                yield self._told(scheme_phrase(line.rpartition(", ")[0]), cells)

    def _told(self, name: str, cells: Sequence[Cell]) -> Told:
        unknown = None
        for before, cell in pairwise(cells):
            subject, against = f"{name} on {cell['span']}", str(before["span"])
            step = compared(EPOCH, cell, before, (subject, against), len(cells) - 1)
            waits = mean_interval(cell.values(COMMUNICATION.column))
            crowd = ", with shared cores" if cell["workers"] > cell["cores"] else ""
            if step.verdict == "lower":
                return replace(step, text=f"{step.text}{crowd}", verdict="wall")
            if waits is not None and waits.low > MOST_WAITING:
                share, of = whole_percent(waits.estimate), ends(waits, whole_percent)
                told = f"{subject}: {share} of the time is communication (95 % CI {of})"
                return Told(f"{told}{crowd}", verdict="wall", interval=waits)
            if step.verdict == "unclear" and unknown is None:
                unknown = step
        last = f"{name}: every step up to {cells[-1]['span']} is faster than the one before"
        return unknown or Told(last, verdict="higher")


class BeyondIdeal(CellClaim):
    """Gains over the baseline that are more than the workers explain."""

    def of(self, panel: CellPanel) -> Iterator[Told]:
        for cell, base in panel.pairs:
            interval, number = EPOCH.ratio(cell, base, len(panel.cells) - 1), cell["workers"]
            if interval is not None and interval.low > number:
                share = whole_percent(interval.estimate / number)
                of = f"{whole_percent(interval.low / number)} to "
                of += whole_percent(interval.high / number)
                text = f"{self.name(cell)}: efficiency {share} (95 % CI {of}), more than "
                text += "its cores explain: T(1) is slow, or smaller shards fit the caches better"
                yield Told(text, verdict="higher", interval=interval)


class MoreNodes(CellClaim):
    """The same ranks on more nodes against fewer, and what the exchange between nodes takes."""

    def of(self, panel: CellPanel) -> Iterator[Told]:
        groups: dict[object, list[Cell]] = {}
        for cell in sorted(panel.cells, key=lambda cell: cell["nodes"]):
            if cell["strategy"] != "sequential":
                groups.setdefault(cell["on_one_node"], []).append(cell)
        pairs = [(group[0], cell) for group in groups.values() for cell in group[1:]]
        for fewer, more in pairs:
            yield self._told(more, fewer, len(pairs))
        alone = [g[0] for g in groups.values() if len(g) == 1 and g[0]["nodes"] > 1]
        for cell in alone:
            base = self._with_full_nodes(cell, panel)
            if base is not None:
                yield self._told(cell, base, len(alone))
            elif share := exchange_between(cell):
                yield Told(f"{self.name(cell)} was not run on fewer nodes: {share}")

    def _with_full_nodes(self, cell: Cell, panel: CellPanel) -> Cell | None:
        """Return the cell with as many ranks per node on fewer nodes."""
        for nodes in range(1, cell["nodes"]):
            ranks, rest = divmod(cell["ranks"] * nodes, cell["nodes"])
            same = {name: cell[name] for name in ("strategy", "threads", "batch_size")}
            wanted = {**same, "ranks": ranks, "nodes": nodes}
            found = [other for other in panel.cells if other.matches(wanted)] if not rest else []
            if found:
                return found[0]
        return None

    def _told(self, more: Cell, fewer: Cell, comparisons: int) -> Told:
        names = self.name(more), self.name(fewer)
        told = compared(EPOCH, more, fewer, names, comparisons)
        share = exchange_between(more) or added_communication(more, fewer, comparisons)
        return replace(told, text="; ".join(filter(None, [told.text, share])))


def exchange_between(cell: Cell) -> str:
    """Return the share of a step that the exchange between nodes takes, in words; empty where a run
    has not measured it."""
    known = BETWEEN.known(cell)
    return f"exchange between nodes takes {mean_share(known)} of a step" if known else ""


def added_communication(more: Cell, fewer: Cell, comparisons: int) -> str:
    """Return what nodes add to communication, where links were not measured; empty where that
    cannot be told."""
    added = COMMUNICATION.difference(more, fewer, comparisons)
    if added is None or fewer["nodes"] > 1:
        return ""
    base = whole_percent(fmean(fewer.by_seed("communication").values()))
    return (
        f"communication in memory takes {base} of the training time; the network adds "
        f"{whole_percent(added.estimate)} ({ends(added, whole_percent)})"
    )


def batches(view: View) -> list[Row]:
    """Return the cells whose configuration was run with more than one batch size."""
    rows = view.frame("cells")
    sizes: dict[object, set[int]] = {}
    for row in rows:
        sizes.setdefault((row["panel"], row["strategy"], row["width"]), set()).add(
            row["batch_size"]
        )
    return [row for row in rows if len(sizes[row["panel"], row["strategy"], row["width"]]) > 1]


def short_runs(view: View) -> list[Row]:
    """Return every run with the speed-up of its cell."""
    gains = {run: row["speed_up"] for row in view.frame("cells") for run in row["_runs"]}
    return [{**row, "speed_up": gains.get(row["run"])} for row in view.data.runs]


def facts(view: View) -> list[str]:
    found = {row["batch"] for row in view.frame("cells") if row["main"]}
    return [f"batch {' and '.join(sorted(found))}"] if found else []


MPI_AGAINST_GLOO = AgainstBaseline(
    measure=EPOCH,
    of_each=True,
    only=lambda cell: bool(cell["strategy"] == "mpi"),
    to=baseline(same=("ranks", "threads", "nodes"), strategy="gloo"),
    base="Gloo",
    where=main,
    note="MPI against Gloo: same model, batch, ranks and threads.",
)
SCALING = Page(
    read=reader(),
    baseline=of_training.SEQUENTIAL,
    quantities=of_training.QUANTITIES,
    frames={
        **FRAMES,
        "batches": batches,
        "short runs": short_runs,
        "published": published_rows,
    },
    headline=largest_gain(BEST, "No configuration is significantly faster than one thread"),
    facts=facts,
    keys=key_figures(BEST),
    claims=(
        BEST,
        BEST_AGAINST_THREADS,
        MPI_AGAINST_GLOO,
        MoreNodes(
            where=main,
            note="More nodes: the same ranks on more nodes against fewer; ranks that do not fit on "
            "fewer nodes are compared with as many per node on fewer. Exchange between nodes is "
            "its share of a mean step, without waits for late ranks.",
        ),
        Wall(
            where=lambda cell: shown(cell) and cell["strategy"] != "sequential",
            note="More ranks: the first number that significantly lengthens the epoch, or whose "
            "communication takes more than 30 % of the training time.",
        ),
        BeyondIdeal(where=main, note="Efficiency: speed-up ÷ (ranks × threads of each)."),
        FARTHEST_ACCURACY,
        FASTEST,
    ),
    leading=(of_training.SPEED_UP_PLOT, of_training.ACCURACY_PLOT, of_training.TRAIN_LOSS_PLOT),
    sections=(
        ChartSection(
            "Time and scaling",
            (of_training.SPEED_UP_PLOT, of_training.EFFICIENCY_PLOT, of_training.EPOCH_PLOT),
        ),
        ChartSection(
            "Where the time goes",
            (of_training.PARTS_PLOT, of_training.COMMUNICATION_PLOT, of_training.OVERLAP_PLOT),
        ),
        ChartSection("Network", (of_training.LINKS_PLOT,)),
        ChartSection(
            "Loss and accuracy",
            (
                of_training.METRICS_PLOT,
                of_training.TRAIN_LOSS_PLOT,
                of_training.LOSS_PLOT,
                of_training.ACCURACY_PLOT,
                of_training.TIME_AND_ACCURACY_PLOT,
            ),
        ),
        ChartSection("Batch size", (of_training.BATCH_TIME_PLOT, of_training.BATCH_ACCURACY_PLOT)),
        ChartSection("Rank by rank", (of_training.RANK_LOSS_PLOT, of_training.RANK_ACCURACY_PLOT)),
    ),
    tables=(
        *(tables.BASELINES, tables.CONFIGURATIONS, tables.LINK_TABLE, tables.RUNS),
        *(BESIDE_PUBLISHED, tables.SHORT_RUNS),
    ),
)
