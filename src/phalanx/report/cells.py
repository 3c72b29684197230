"""Tidy rows, the cells that they form, and what is measured of a cell, with its interval. Pure.

A row is one run, or one thing measured in it: a value for each column, or a tuple of values where a
run has several (its timed epochs). Rows that differ in their seed alone form a cell. Cells of one
panel are compared with each other, and with a baseline where the panel has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any, Literal

from phalanx.report.statistics import (
    Interval,
    Times,
    mean_interval,
    ratio_of_times,
)

Row = Mapping[str, Any]
Baseline = Callable[["Cell", Sequence["Cell"]], "Cell | None"]
"""Choice of the cell that another one is compared with."""


@dataclass(frozen=True)
class Cell:
    """Rows that differ in their seed alone; what they have in common is read off the first."""

    rows: tuple[Row, ...]

    def __getitem__(self, column: str) -> Any:
        return self.rows[0].get(column)

    def times(self, column: str) -> Times:
        """Return the values of a column, row by row, of the rows that have some."""
        found = (row.get(column) for row in self.rows)
        runs = (value if isinstance(value, tuple) else (value,) for value in found)
        return tuple(run for run in runs if run and run[0] is not None)

    def values(self, column: str) -> list[float]:
        """Return all values of a column."""
        return [value for run in self.times(column) for value in run]

    def by_seed(self, column: str) -> dict[int, float]:
        """Return a value by seed; of several rows of one seed the last."""
        return {row["seed"]: row[column] for row in self.rows if row.get(column) is not None}

    def matches(self, where: Mapping[str, object]) -> bool:
        """Return whether the cell has these values."""
        return all(self[column] == value for column, value in where.items())


def make_cells(rows: Iterable[Row], columns: Sequence[str]) -> tuple[Cell, ...]:
    """Group rows that agree in `columns`, in the order of the first of each."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(column) for column in columns), []).append(row)
    return tuple(Cell(tuple(group)) for group in groups.values())


@dataclass(frozen=True)
class CellPanel:
    """Cells that are compared with each other: of one model, one link, one collective."""

    label: str
    cells: tuple[Cell, ...]
    baseline: Baseline | None = None

    def base_of(self, cell: Cell) -> Cell | None:
        """Return the cell that `cell` is compared with, which may be itself."""
        return self.baseline(cell, self.cells) if self.baseline else None

    @cached_property
    def pairs(self) -> list[tuple[Cell, Cell]]:
        """Return each cell that has a baseline, with that."""
        found = ((cell, self.base_of(cell)) for cell in self.cells)
        return [(cell, base) for cell, base in found if base is not None and base is not cell]

    def where(self, is_wanted: Callable[[Cell], bool]) -> CellPanel:
        """Return the panel of some of the cells."""
        return CellPanel(self.label, tuple(filter(is_wanted, self.cells)), self.baseline)


def baseline(same: Sequence[str] = (), **where: object) -> Baseline:
    """Return the choice of the cell with the values `where`, and those of the compared cell in the
    columns `same`."""

    def choose(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
        wanted = {**where, **{column: cell[column] for column in same}}
        return next((other for other in cells if other.matches(wanted)), None)

    return choose


Quantity = Callable[[Row, Cell, CellPanel], Mapping[str, Any]]
"""Columns that are computed of a cell, of its row so far and its panel, and added to the row."""


@dataclass(frozen=True)
class Measure:
    """A quantity that runs have measured: its value in a cell, from the lowest to the highest."""

    column: str
    noun: str = ""
    """Name in a sentence."""
    _: KW_ONLY
    how: Callable[[Sequence[float]], float] = median
    better: Literal["lower", "higher"] = "lower"
    paired: bool = False
    """Compared by the difference seed by seed, not by the ratio of times."""
    is_share: bool = True
    """Such a difference is told in percentage points."""
    interval: Literal["range", "mean"] = "range"
    """Ends: the lowest and the highest value, or the interval of the mean over runs."""
    whole: bool = False
    """A cell has a value only if every run of it has one."""

    def known(self, cell: Cell) -> list[float]:
        """Return the values of a cell's runs."""
        is_known = not self.whole or len(cell.times(self.column)) == len(cell.rows)
        return cell.values(self.column) if is_known else []

    def estimate(self, cell: Cell) -> float | None:
        """Return the value of a cell, None where no run has one."""
        values = self.known(cell)
        return self.how(values) if values else None

    def __call__(self, _row: Row, cell: Cell, _panel: CellPanel) -> Mapping[str, Any]:
        """Return the value of a cell and its ends, as a `Quantity`."""
        values = self.known(cell)
        low, high = (min(values), max(values)) if values else (None, None)
        if self.interval == "mean":
            found = mean_interval(values)
            low, high = (found.low, found.high) if found else (None, None)
        return _with_ends(self.column, self.estimate(cell), low, high)

    def ratio(self, cell: Cell, base: Cell, comparisons: int = 1) -> Interval | None:
        """Return how many times better a cell is than another one, None with too few values."""
        own, other = cell.times(self.column), base.times(self.column)
        sides = (other, own) if self.better == "lower" else (own, other)
        return ratio_of_times(*sides, comparisons=comparisons)

    def pairs(self, cell: Cell, base: Cell) -> list[tuple[float, float]]:
        """Return the values of two cells for each seed that both have."""
        own, other = cell.by_seed(self.column), base.by_seed(self.column)
        return [(own[seed], other[seed]) for seed in sorted(own.keys() & other.keys())]

    def gap(self, cell: Cell, base: Cell) -> float | None:
        """Return the mean of the differences seed by seed; None where no seed is in both."""
        pairs = self.pairs(cell, base)
        return fmean(own - other for own, other in pairs) if pairs else None

    def difference(self, cell: Cell, base: Cell, comparisons: int = 1) -> Interval | None:
        """Return the difference of two cells seed by seed, None with fewer than two in common."""
        gaps = [own - other for own, other in self.pairs(cell, base)]
        return mean_interval(gaps, comparisons=comparisons)

    def lead(self, best: Cell, other: Cell, comparisons: int = 1) -> Interval | None:
        """Return by how much a cell is ahead of another one: more than 1, or of paired measures
        more than 0, where it is."""
        if not self.paired:
            return self.ratio(best, other, comparisons)
        ahead = (other, best) if self.better == "lower" else (best, other)
        return self.difference(*ahead, comparisons)

    def ordered(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells that have a value, the best first."""
        known = [(value, cell) for cell in cells if (value := self.estimate(cell)) is not None]
        sign = 1 if self.better == "lower" else -1
        return [cell for _, cell in sorted(known, key=lambda pair: sign * pair[0])]


def _with_ends(
    column: str, value: float | None, low: float | None, high: float | None
) -> dict[str, float | None]:
    return {column: value, f"{column}_low": low, f"{column}_high": high}


def gain(column: str, measure: Measure) -> Quantity:
    """Return the gain of a cell over its baseline: how many times better it is."""

    def columns(_row: Row, cell: Cell, panel: CellPanel) -> Mapping[str, Any]:
        base, own = panel.base_of(cell), measure.estimate(cell)
        value = interval = None
        if base is not None and own is not None and (of_base := measure.estimate(base)):
            value = of_base / own if measure.better == "lower" else own / of_base
            interval = None if base is cell else measure.ratio(cell, base)
        low, high = (interval.low, interval.high) if interval else (None, None)
        return _with_ends(column, value, low, high)

    return columns


def change(column: str, measure: Measure) -> Quantity:
    """Return the difference of a cell from its baseline, seed by seed: the mean."""

    def columns(_row: Row, cell: Cell, panel: CellPanel) -> Mapping[str, Any]:
        base = panel.base_of(cell)
        is_apart = base is not None and base is not cell
        return {column: measure.gap(cell, base) if base and is_apart else None}

    return columns


def derived(column: str, value: Callable[[Row], Any]) -> Quantity:
    """Return a quantity computed from those before it."""
    return lambda row, *_: {column: value(row)}


def best_by(
    rows: Iterable[Row], columns: Sequence[str], value: Callable[[Row], float]
) -> dict[tuple[Any, ...], Row]:
    """Return the row with the largest value for each combination of `columns`, the first of
    equals."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[column] for column in columns)
        if key not in best or value(row) > value(best[key]):
            best[key] = row
    return best


def cell_rows(panel: CellPanel, quantities: Sequence[Quantity]) -> list[dict[str, Any]]:
    """Return a row for each cell: the columns of its first run, and the quantities."""
    rows = []
    for cell in panel.cells:
        row: dict[str, Any] = {**cell.rows[0], "panel": panel.label}
        row["seeds"] = len({run.get("seed") for run in cell.rows})
        row |= {"_cell": cell, "_runs": [r["run"] for r in cell.rows]}
        for quantity in quantities:
            row |= quantity(row, cell, panel)
        rows.append(row)
    return rows
