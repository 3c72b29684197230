"""The network from scratch, up to many workers: a part of the page of a parallelism study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from phalanx.report.cells import Cell, Measure, Row
from phalanx.report.claims import Fastest, compared
from phalanx.report.content import Column, numbers, words
from phalanx.report.format import counted, fixed, percent, whole_percent
from phalanx.report.marks import Axis, Lines
from phalanx.report.parallelism_rows import cost_columns, range_of, scheme_columns
from phalanx.report.training import reader
from phalanx.report.training_page import ACCURACY, EPOCH, EPOCH_SOURCE, LOSS, epoch_time
from phalanx.report.values import ChartSection, Page, Plot, Say, StudyRows, TableSpec, Told, View

ALONE = "alone"
"""Scheme of a single process, the first point of every other one."""


def scratch_part(data: StudyRows) -> StudyRows | None:
    """Return the runs from scratch, by scheme, each with the single process; None without any."""
    found = [row for row in data.runs if row["is_scratch"] and row["is_timed"]]
    schemes = [s for s in dict.fromkeys(row["strategy"] for row in found) if s != ALONE]
    rows = [
        {**row, **scheme_columns(row), "panel": scheme, "who": _who(row)}
        for scheme in schemes
        for row in found
        if row["strategy"] in (scheme, ALONE)
    ]
    return replace(data, rows=rows) if rows else None


def _who(row: Row) -> str:
    number: int = row["num_workers"]
    return "one process" if row["strategy"] == ALONE else counted(number, "worker")


def most_workers(view: View) -> Iterator[Told]:
    """Yield training on the most workers against one process, or the smallest number, by width."""
    for panel in view.panels:
        widths: dict[str, list[Cell]] = {}
        for cell in panel.cells:
            widths.setdefault(cell["hidden"], []).append(cell)
        for hidden, cells in sorted(
            widths.items(), key=lambda item: list(map(int, item[0].split()))
        ):
            first = min(cells, key=lambda cell: (cell["strategy"] != ALONE, cell["ranks"]))
            most = max(cells, key=lambda cell: int(cell["num_workers"]))
            if most is not first:
                names = f"{hidden} hidden units on {most['who']}", first["who"]
                yield replace(compared(EPOCH, most, first, names), label=panel.label)


def _loss_domain(rows: Sequence[Row]) -> tuple[float, float]:
    """Level lines are to look level: rounding in the tenth digit must not fill the axis."""
    losses = numbers(rows, "loss")
    around = max(max(losses) - min(losses), 0.05 * max(losses))
    middle = (max(losses) + min(losses)) / 2
    return middle - around, middle + around


def cells_once(view: View) -> list[Row]:
    """Return the cells, of which a single process is in every panel, once each."""
    rows = {id(row["_cell"].rows[0]["_measure"]): row for row in view.frame("cells")}
    found = [{**row, **cost_columns(row)} for row in rows.values()]
    return sorted(found, key=lambda row: (row["strategy"] != ALONE, row["strategy"]))


TOOLTIP = (
    *("strategy|scheme", "hidden", "num_workers:Q|workers", "epoch_s|epoch (s)|,.4~f"),
    *("waiting||.1%", "loss||.4f", "accuracy||.2%"),
)
_plot = partial(
    Lines,
    x=Axis("num_workers", "workers", scale="counts"),
    series="hidden",
    title="hidden",
    tooltip=TOOLTIP,
)
SCRATCH = Page(
    read=reader(),
    cell=("cell", "hidden"),
    quantities=(EPOCH, LOSS, ACCURACY, Measure("waiting")),
    frames={"once": cells_once},
    claims=(
        Fastest(
            measure=EPOCH,
            noun="numbers of workers",
            facts=lambda cell: [f"{epoch_time(cell)} per epoch"],
            within="hidden",
            at="{} hidden units",
            phrase="who",
            note="From scratch: the network without PyTorch; if workers outnumber cores they share "
            "them, so this shows the cost of the scheme itself.",
        ),
        Say(most_workers),
    ),
    sections=(
        ChartSection(
            "A network from scratch, up to many workers",
            (
                Plot(
                    name="scratch-time",
                    title="From scratch: time of an epoch by workers",
                    caption="One line per width of the hidden layers; one worker is one process "
                    "without communication. Servers do not count as workers.",
                    source=EPOCH_SOURCE,
                    least=2,
                    mark=_plot(y=Axis("epoch_s", "time of an epoch (s)", scale="auto", zero=True)),
                ),
                Plot(
                    name="scratch-loss",
                    title="From scratch: loss by workers",
                    caption="After the last epoch. All schemes make the same update of the same "
                    "global batch, so lines are level up to rounding.",
                    source="evaluation events: loss_sum, samples of all ranks",
                    known="loss",
                    least=2,
                    mark=_plot(y=Axis("loss", "validation loss", form=".3f", domain=_loss_domain)),
                ),
            ),
        ),
    ),
    tables=(
        TableSpec(
            title="From scratch",
            note="The network without PyTorch; servers do not count as workers.",
            frame="once",
            on_terminal=True,
            columns=(
                words("scheme", "strategy", short="scheme"),
                Column("hidden", "hidden", short="hidden"),
                Column("workers", "num_workers", short="workers"),
                Column("ranks", "ranks", short="ranks"),
                Column("epoch (s)", "epoch_s", fixed, short="epoch s"),
                Column("waiting", "waiting", whole_percent, short="wait %"),
                Column(
                    "sent a rank and step",
                    lambda row: range_of(row["_sent"], "found"),
                    short="sent",
                ),
                Column("formula", lambda row: range_of(row["_sent"], "formula")),
                words("=", "mark"),
                words("equal", lambda row: row["mark"][:1], short="=", only="terminal"),
                Column("loss", "loss", "{:.4f}".format, short="loss"),
                Column("accuracy", "accuracy", lambda value: percent(value, 2), short="acc. %"),
            ),
        ),
    ),
)
