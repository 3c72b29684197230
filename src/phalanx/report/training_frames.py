"""Rows of what trainings are made of, and their tables: epochs, parts of a step, ranks, links,
metrics; baselines, configurations, runs. Pure.

They are what charts are drawn from and what is saved as CSV, so names carry their unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from phalanx.records.divergence import loss_text
from phalanx.report.cells import Measure, Row
from phalanx.report.claims import mean_share
from phalanx.report.content import Column, words
from phalanx.report.format import (
    UNKNOWN,
    amount,
    fixed,
    grouped,
    one_decimal,
    percent,
    three_digits,
    two_decimals,
)
from phalanx.report.measures import EpochMeasure, RunMeasure
from phalanx.report.rank_measures import PARTS
from phalanx.report.training import measures_of
from phalanx.report.values import TableSpec, View

MOST_EPOCHS = 12
"""Epochs of a run by itself that have a bar each."""
LINKS = {
    "node": "in the node",
    "network": "between nodes",
    "untold": "link not measured",
    "waiting": "waiting for others",
}
"""Fields of `LinkShares`, in words."""


def trained_runs(view: View) -> list[tuple[Row, RunMeasure]]:
    """Return the runs that have finished an epoch, also those that did not come to their end."""
    found = [(row, row["_measure"]) for row in view.data.runs]
    return [
        (row, run) for row, run in found if run.run and run.trained and row["panel"] is not None
    ]


def epoch_rows(view: View) -> list[Row]:
    """Return a row an epoch of a configuration, mean over its seeds. Runs that were not completed
    have rows of their own."""
    groups: dict[Any, list[tuple[Row, RunMeasure]]] = {}
    for row, run in trained_runs(view):
        own = "completed" if run.status == "completed" else run.name
        groups.setdefault((row["panel"], row["cell"], own), []).append((row, run))
    rows: list[Row] = []
    for group in groups.values():
        first, names = group[0][0], [run.name for _, run in group]
        is_validated = any(e.validation_loss is not None for _, run in group for e in run.trained)
        curve = names[0] if len(names) == 1 else f"{first['configuration']}, {len(names)} runs"
        for epochs in zip(*(run.trained for _, run in group), strict=False):
            head = {**first, "curve": curve}
            head["is_validated"] = is_validated
            rows.append({**head, "runs": len(group), "_runs": names, **_mean_epoch(epochs)})
    return rows


def _mean_epoch(epochs: Sequence[EpochMeasure]) -> dict[str, float | None]:
    """Return the mean of the same epoch of several runs."""
    known = {
        name: [value for epoch in epochs if (value := getattr(epoch, name)) is not None]
        for name in ("trained_s", "epoch_s", "train_loss", "validation_loss", "validation_accuracy")
    }
    means = {name: fmean(values) if values else None for name, values in known.items()}
    return {"epoch": epochs[0].epoch + 1, **means}


def part_rows(view: View) -> list[Row]:
    """Return a row a part of a configuration's mean step, in milliseconds, laid end to end."""
    rows: list[Row] = []
    for cell in view.frame("cells"):
        known = [run.step_parts_s for run in measures_of(cell) if run.step_parts_s]
        if not known:
            continue
        means = [fmean(parts[i] for parts in known) for i in range(len(PARTS))]
        start_ms = 0.0
        for part, part_s in zip(PARTS, means, strict=True):
            row = {**cell, "bar": f"{cell['strategy']} {cell['width']}", "part": part}
            row |= {"letter": part[0].upper(), "part_ms": part_s * 1e3}
            row |= {"share": part_s / sum(means), "_runs": cell["_runs"]}
            rows.append({**row, "start_ms": start_ms, "end_ms": start_ms + part_s * 1e3})
            start_ms += part_s * 1e3
    return rows


def overlap_rows(view: View) -> list[Row]:
    """Return a row a part of a bar, in milliseconds of a mean step: a bar a run, or of a run by
    itself a bar an epoch."""
    rows: list[Row] = []
    found = [(row, run) for row, run in trained_runs(view) if run.overlap and row["shown"]]
    for row, run in found:
        bars = {run.name: run.overlap} if run.overlap else {}
        alone = sum(other["panel"] == row["panel"] for other, _ in found) == 1
        if alone and 1 < len(run.overlaps) <= MOST_EPOCHS:
            bars = {f"epoch {epoch + 1}": overlap for epoch, overlap in run.overlaps.items()}
        for bar, overlap in bars.items():
            start_s = 0.0
            for kind, took_s in (("hidden", overlap.hidden_s), ("exposed", overlap.exposed_s)):
                times = {
                    "time_ms": took_s,
                    "start_ms": start_s,
                    "end_ms": start_s + took_s,
                    "hideable_ms": overlap.hideable_s,
                }
                head = {**row, "bar": bar, "kind": kind}
                rows.append(head | {name: 1e3 * value_s for name, value_s in times.items()})
                start_s += took_s
    return rows


def metric_rows(view: View) -> list[Row]:
    """Return a row a value that a program has logged."""
    return [
        {**row, "metric": name, "step": event.step + 1, "value": value}
        for row, run in trained_runs(view)
        for rank in run.ranks.values()  # rank 0 or, after its death, the next
        for event in rank.metrics
        for name, value in event.metrics.items()
    ]


def rank_rows(view: View) -> list[Row]:
    """Return a row an epoch of a rank, of runs on several; that on the most ranks first."""
    found = [(row, run) for row, run in trained_runs(view) if len(run.ranks) > 1 and row["shown"]]
    return [
        {
            **row,
            "rank": rank,
            "epoch": epoch + 1,
            "samples": entry.event.samples,
            "train_s": entry.event.train_s,
            "train_loss": entry.train_loss,
            "train_accuracy": entry.train_accuracy,
        }
        for row, run in sorted(found, key=lambda pair: -pair[0]["ranks"])
        for rank, ranked in run.ranks.items()
        for epoch, entry in sorted(ranked.epochs.items())
    ]


BETWEEN = Measure("link_network", how=fmean, interval="mean", whole=True)
LINK_QUANTITIES = (
    *(replace(BETWEEN, column=f"link_{name}") for name in LINKS),
    Measure("link_step_s", how=fmean),
    replace(BETWEEN, column="link_network_bytes"),
    Measure("link_is_formula", how=max),
)


def linked_cells(view: View) -> list[Row]:
    """Return the configurations whose shares of links were measured, where some have several
    nodes."""
    cells = view.measured(LINK_QUANTITIES)
    found = [cell for cell in cells if cell["main"] and cell["link_waiting"] is not None]
    return found if any(cell["nodes"] > 1 for cell in found) else []


def link_rows(view: View) -> list[Row]:
    """Return a row a link of these configurations."""
    rows: list[Row] = []
    for cell in linked_cells(view):
        for link, label in LINKS.items():
            share, low, high = (cell[f"link_{link}{end}"] for end in ("", "_low", "_high"))
            if share is not None:
                row = {**cell, "link": label, "share": share}
                row["share_low"] = None if low is None else max(0.0, low)
                row["share_high"] = None if high is None else min(1.0, high)
                row["step_ms"] = 1e3 * cell["link_step_s"]
                rows.append({**row, "runs": len(cell["_runs"]), "_runs": cell["_runs"]})
    return rows


FRAMES = {
    "epochs": epoch_rows,
    "parts": part_rows,
    "overlap": overlap_rows,
    "metrics": metric_rows,
    "ranks": rank_rows,
    "links": link_rows,
    "linked": linked_cells,
}
"""Rows of every training, by name."""


MARKS = {
    "completed": "\N{CHECK MARK}",
    "failed": "\N{BALLOT X}",
    "damaged": "\N{BALLOT X}",
    "interrupted": "\N{EM DASH}",
    "running": "\N{HORIZONTAL ELLIPSIS}",
    "planned": "\N{MIDDLE DOT}",
    "missing": "\N{MIDDLE DOT}",
}
SAYS = {"missing": "not run", "planned": "planned, not run"}
RowColumn = Column[Row]


def with_ends(name: str, form: str | Callable[[float], str] = ".2f") -> Any:
    """Return the value of a column with its interval: 1.93 (1.81–2.05). form: a format, or what
    makes the text of a value."""
    said = form if callable(form) else f"{{:{form}}}".format

    def text(row: Row) -> str | None:
        value, low, high = (row.get(key) for key in (name, f"{name}_low", f"{name}_high"))
        if value is None:
            return None
        ends = "" if low is None or high is None else f" ({said(low)}{UNKNOWN}{said(high)})"
        return f"{said(value)}{ends}"

    return text


def _range(row: Row) -> str:
    return f" {UNKNOWN} ".join(fixed(row[f"epoch_s_{end}"]) for end in ("low", "high"))


def over_seeds(row: Row) -> str | None:
    """Return the worst and the best accuracy of the seeds."""
    if row.get("accuracy") is None:
        return None
    if row["seeds"] == 1:
        return "1 seed"
    ends = f"{row['accuracy_low'] * 100:.2f} {UNKNOWN} {percent(row['accuracy_high'], 2)}"
    return f"{ends}, {row['seeds']} seeds"


MODEL: RowColumn = words("model", "panel")
STRATEGY: RowColumn = words("strategy", "strategy")
RANKS: RowColumn = Column("ranks", "ranks")
THREADS: RowColumn = Column("threads", "threads")
BATCH: RowColumn = Column("batch", "batch")
NODES: RowColumn = Column("nodes", "nodes", only="varied")
EPOCH: RowColumn = Column("epoch (s)", "epoch_s", fixed)
RATE: RowColumn = Column("samples/s", "rate", grouped)
SPEED_UP: RowColumn = Column("speed-up", with_ends("speed_up"))
EFFICIENCY: RowColumn = Column("efficiency", "efficiency", one_decimal)
ACCURACY: RowColumn = Column("accuracy", "accuracy", two_decimals)
SPLIT = (STRATEGY, RANKS, THREADS, BATCH)
MEDIAN_EPOCH: RowColumn = Column("epoch (s)", lambda row: row["_measure"].epoch_s, fixed)
PROCESSOR: tuple[RowColumn, ...] = (
    Column("user (s)", "user_s", fixed),
    Column("system (s)", "system_s", fixed),
)


BASELINES = TableSpec(
    title="Sequential baselines",
    note="One process, no communication. One thread is T(1) of every speed-up.",
    columns=(MODEL, BATCH, THREADS, EPOCH, RATE, SPEED_UP, EFFICIENCY, ACCURACY),
    where=lambda row: row["strategy"] == "sequential",
    order=lambda row: row["batch_size"],
)
CONFIGURATIONS = TableSpec(
    title="Configurations",
    note="Completed runs, grouped over seeds. Times are medians over epochs and seeds, with the "
    "fastest and the slowest epoch; speed-ups have 95 % intervals; accuracy is the mean over "
    "seeds, with the worst and the best.",
    columns=(
        *(MODEL, *SPLIT, NODES, EPOCH, Column("range (s)", _range), *PROCESSOR, RATE, SPEED_UP),
        *(EFFICIENCY, Column("comm.", "communication", one_decimal), ACCURACY),
        Column("over seeds", over_seeds),
    ),
    order=lambda row: row["batch_size"],
)


def _status(row: Row) -> str:
    return SAYS.get(row["status"], str(row["status"]))


RUNS = TableSpec(
    title="Runs",
    note="Epoch times in order; the first is warm-up if there are at least three. User and system: "
    "processor time of all ranks and threads per epoch, which exceeds the wall-clock time if "
    "several cores work, and includes spinning waits.",
    frame="runs",
    columns=(
        words("run", "run"),
        words("status", lambda row: f"{MARKS[row['status']]} {_status(row)}"),
        *(*SPLIT, NODES),
        Column("seed", "seed"),
        MEDIAN_EPOCH,
        *PROCESSOR,
        RATE,
        Column("comm.", "communication", one_decimal),
        Column("loss", "loss", loss_text),
        ACCURACY,
        Column("start-up (s)", "startup_s", fixed),
        Column("epochs (s)", lambda row: " ".join(map(fixed, row["epochs_s"])) or None),
        words("error", "error"),
    ),
)


SHORT_RUNS = TableSpec(
    title="",
    frame="short runs",
    on_terminal=True,
    columns=(
        words("model", lambda row: row.get("model", row["run"]), short="model"),
        words("strategy", "strategy", short="strategy"),
        Column("ranks", "ranks", short="ranks"),
        Column("threads", "threads", short="threads"),
        Column("batch", "batch", short="batch", only="varied"),
        Column("nodes", "nodes", short="nodes", only="varied"),
        Column("seed", "seed", short="seed", only="varied"),
        replace(MEDIAN_EPOCH, short="epoch s"),
        Column("samples/s", "rate", grouped, short="samples/s"),
        Column("speed-up", "speed_up", "{:.2f}".format, short="speed-up"),
        Column("comm %", "communication", one_decimal, short="comm %"),
        Column("acc. %", "accuracy", two_decimals, short="acc. %"),
        words("status", _status, short="status", only="varied"),
    ),
)


def _share(link: str) -> RowColumn:
    def text(row: Row) -> str | None:
        is_known = row[f"link_{link}"] is not None
        return mean_share(row["_cell"].values(f"link_{link}")) if is_known else None

    return Column(LINKS[link], text, only="known")


def _bytes_words(row: Row) -> str | None:
    sent = row["link_network_bytes"]
    if sent is None:
        return None
    return f"{amount(sent)} (by formula)" if row["link_is_formula"] else amount(sent)


LINK_TABLE = TableSpec(
    title="Links",
    note="Mean step: exchange in the memory of a node and between nodes, as measured on the last "
    "rank to arrive, and the waits of the other ranks for it, mean over ranks, with 95 % intervals "
    "over runs. Communication hidden behind the backward pass is excluded. Bytes: sent by a node "
    "to other nodes per step.",
    frame="linked",
    columns=(
        *(
            MODEL,
            *SPLIT,
            NODES,
            Column("step (ms)", lambda row: three_digits(1e3 * row["link_step_s"])),
        ),
        *map(_share, LINKS),
        Column("sent between nodes", _bytes_words),
    ),
)
