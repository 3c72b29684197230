"""The page of a scaling study, of a run, or of runs that belong to no study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from phalanx.report import training_frames as tables
from phalanx.report import training_page as of_training
from phalanx.report.cells import Cell, CellPanel, Measure, Row, baseline
from phalanx.report.claims import (
    AgainstBaseline,
    BeyondIdeal,
    CellClaim,
    Wall,
    compared,
    key_figures,
    largest_gain,
    mean_share,
)
from phalanx.report.format import ends, whole_percent
from phalanx.report.published.beside import BESIDE_PUBLISHED, published_rows
from phalanx.report.schemes import scheme_phrase
from phalanx.report.training import reader
from phalanx.report.training_frames import BETWEEN, FRAMES
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
from phalanx.report.values import ChartSection, Page, Told, View


@dataclass(frozen=True, kw_only=True)
class MoreNodes(CellClaim):
    """The same ranks on more nodes against fewer, and what the exchange between nodes takes."""

    measure: Measure

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
        told = compared(self.measure, more, fewer, names, comparisons)
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
        f"communication in memory takes {base} of the training time, the network adds "
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
            measure=EPOCH,
            where=main,
            note="More nodes: the same ranks on more nodes against fewer; ranks that fit on no "
            "fewer stand against as many per node on fewer. Exchange between nodes is its part of "
            "a mean step, without waiting for ranks that come later.",
        ),
        Wall(
            measure=EPOCH,
            waiting=COMMUNICATION,
            most=0.30,
            per="line",
            along=("ranks", "threads"),
            names=lambda line: scheme_phrase(line.rpartition(", ")[0]),
            where=lambda cell: shown(cell) and cell["strategy"] != "sequential",
            note="More ranks: the first number that is seen to lengthen the epoch, or whose "
            "communication takes more than 30 % of the training time.",
        ),
        BeyondIdeal(
            measure=EPOCH,
            where=main,
            note="Efficiency: speed-up ÷ (ranks × threads of each).",
        ),
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
