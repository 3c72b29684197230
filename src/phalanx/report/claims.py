"""Claims: comparisons of cells, in sentences as a paper would say them.

No sentence says more than its interval: what that does not carry is no significant difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from phalanx.report.cells import Baseline, Cell, CellPanel, Measure
from phalanx.report.content import KeyFigure
from phalanx.report.format import (
    ends,
    first_few,
    joined,
    percent,
    points,
    points_with_span,
    span,
)
from phalanx.report.statistics import (
    mean_interval,
    non_inferiority,
    not_told_apart,
)
from phalanx.report.values import Told, View

TIMES = "\N{MULTIPLICATION SIGN}"
Facts = Callable[[Cell], Sequence[str]]


def compared(
    measure: Measure,
    own: Cell,
    other: Cell,
    words: tuple[str, str],
    comparisons: int = 1,
    units: str = "epochs",
) -> Told:
    """Return a comparison of the speeds of two cells. words: for the one and the other.

    Its interval is one together with the other comparisons of its claim.
    """
    (subject, against), interval = words, measure.ratio(own, other, comparisons)
    if interval is None:
        return Told(f"{subject} and {against}: too few {units} to compare", verdict="unclear")
    verdict = interval.verdict(1)
    if verdict == "unclear":
        factor = f"{interval.estimate:.2f}{TIMES} ({span(interval)})"
        text = f"No significant difference between {subject} and {against}: {factor}"
        return Told(text, verdict=verdict, interval=interval)
    shown, how = (interval, "faster") if verdict == "higher" else (interval.inverse, "slower")
    factor = f"{shown.estimate:.2f}{TIMES} {how} than {against}"
    text = f"{subject}: {factor} (95 % CI {span(shown)})"
    return Told(text, verdict=verdict, interval=interval)


def changed(
    measure: Measure, own: Cell, base: Cell, words: tuple[str, str], comparisons: int = 1
) -> Told:
    """Return a comparison of two cells seed by seed, as of accuracies. words: for each of them."""
    (subject, against), gap = words, measure.gap(own, base)
    interval, verdict = measure.difference(own, base, comparisons), "unclear"
    form = points if measure.is_share else "{:+.4g}".format
    unit = " points" if measure.is_share else ""
    if gap is None:
        text = f"{subject}: no seed in common with {against}"
    elif interval is None:
        text = f"{subject}: {form(gap)}{unit} against {against}, one seed"
    elif interval.low == interval.high == 0:
        text, verdict = f"{subject}: the {measure.noun} of {against} with every seed", "same"
    else:
        verdict = interval.verdict(0)
        where = "above" if verdict == "higher" else "below"
        text = f"{subject}: {measure.noun} {where} {against}, "
        if verdict == "unclear":
            text = f"No significant difference in {measure.noun} between {subject} and {against}: "
        text += f"{form(interval.estimate)}{unit} ({ends(interval, form)})"
    return Told(text, verdict=verdict, interval=interval)


def best_and_rivals(
    measure: Measure, cells: Iterable[Cell]
) -> tuple[Cell | None, list[Cell], list[Cell]]:
    """Return the best cell, the others, and those that it is not significantly ahead of."""
    ordered = measure.ordered(cells)
    if not ordered:
        return None, [], []
    best, *others = ordered
    lead = partial(measure.lead, best, comparisons=len(others))
    neutral = 0 if measure.paired else 1
    return best, others, not_told_apart(others, lead, neutral=neutral)


def mean_share(shares: Sequence[float]) -> str:
    """Return the mean of the shares that runs have measured, with its interval: 8.1 % (7.9 to
    8.4)."""
    interval, mean = mean_interval(shares), percent(fmean(shares), 1)
    if interval is None:
        return f"{mean} (one run)"
    return f"{mean} ({100 * max(0.0, interval.low):.1f} to {100 * min(1.0, interval.high):.1f})"


def agreement(number: int, holds: str, exceptions: Sequence[str], noun: str) -> Told:
    """Return for how many something holds, and those for which it does not."""
    text = f"{number - len(exceptions)} of {number} {noun} {holds}"
    return Told(f"{text}; not {joined(exceptions)}" if exceptions else text)


@dataclass(frozen=True, kw_only=True)
class CellClaim:
    """A claim about the cells of each panel."""

    note: str = ""
    where: Callable[[Cell], bool] = lambda _: True
    phrase: str = "phrase"
    """Column that names a cell in a sentence."""

    def tell(self, view: View) -> Iterator[Told]:
        for panel in view.panels:
            for told in self.of(panel.where(self.where)):
                yield replace(told, label=panel.label)

    def of(self, panel: CellPanel) -> Iterable[Told]:
        """Return the findings on one panel."""
        raise NotImplementedError

    def name(self, cell: Cell) -> str:
        return str(cell[self.phrase])


@dataclass(frozen=True, kw_only=True)
class Fastest(CellClaim):
    """The best cell of all, or of each value of a column, where its interval to every other says
    so."""

    measure: Measure
    noun: str
    facts: Facts = lambda _: ()
    word: str = "fastest"
    within: str = ""
    """Column whose values are compared apart."""
    at: str = "{}"
    """Words for a value of it."""

    def of(self, panel: CellPanel) -> Iterator[Told]:
        groups: dict[Any, list[Cell]] = {}
        for cell in panel.cells:
            groups.setdefault(cell[self.within] if self.within else None, []).append(cell)
        for value, group in groups.items():
            best, others, rivals = best_and_rivals(self.measure, group)
            if best is None:
                continue
            where = f"{self.at.format(value)}: " if self.within else ""
            facts = ", ".join(self.facts(best))
            if not others and self.within:
                continue
            if not others:
                yield Told(f"{where}{self.name(best)}, {facts}")
                continue
            count = len(others)
            if rivals:
                names = first_few([self.name(cell) for cell in rivals])
                yield Told(
                    f"{where}No clear winner among {count + 1} {self.noun}: "
                    f"{self.name(best)} ({facts}) and {names} do not differ significantly",
                    verdict="unclear",
                )
            else:
                best_of = f"is the {self.word} of {count + 1} {self.noun}: {facts}"
                yield Told(f"{where}{self.name(best)} {best_of}", verdict="higher")


@dataclass(frozen=True, kw_only=True)
class AgainstBaseline(CellClaim):
    """The best cell, or each, against its baseline."""

    measure: Measure
    of_each: bool = False
    only: Callable[[Cell], bool] = lambda _: True
    """Cells that are compared."""
    to: Baseline | None = None
    """Cell that it is compared with; the baseline of the page where None."""
    base: str = ""
    """Words for the baseline; its phrase where empty."""
    units: str = "epochs"
    value: Callable[[Cell], str] = lambda _: ""
    unit: str = ""
    headline_phrase: str = ""
    """Column that names a cell in a headline, where it is not the phrase."""
    facts: Facts = lambda _: ()
    """Key figure: the value of a cell, of which no gain is significant, what it is, and what stands
    beside it; without a value there is none."""

    def of(self, panel: CellPanel) -> Iterator[Told]:
        if self.to is not None:
            panel = replace(panel, baseline=self.to)
        chosen = self.measure.ordered(filter(self.only, panel.cells))
        pairs = [cell for cell in chosen if panel.base_of(cell) not in (None, cell)]
        for cell in chosen if self.of_each else chosen[:1]:
            count = len(pairs) if self.of_each else len(panel.cells) - 1
            yield from self._told(panel, cell, count)

    def told(self, panel: CellPanel, cell: Cell) -> list[Told]:
        """Return the findings on one cell, among all of its panel."""
        return list(self._told(panel, cell, len(panel.cells) - 1))

    def _told(self, panel: CellPanel, cell: Cell, comparisons: int) -> Iterator[Told]:
        base, name, facts = panel.base_of(cell), self.name(cell), list(self.facts(cell))
        value = self.value(cell)
        meaning = f"{self.unit}, {name}" if self.unit else name
        figure = KeyFigure("", value, meaning, ", ".join(facts))
        interval, text, verdict, short = None, "", "unclear", ""
        if base is not None and base is not cell:
            against = self.base or self.name(base)
            names = name, against
            told = compared(self.measure, cell, base, names, comparisons, self.units)
            interval, text, verdict = told.interval, told.text, told.verdict
            if interval is not None and verdict == "higher":
                factor = f"{interval.estimate:.2f}{TIMES}"
                facts = [
                    span(interval),
                    ", ".join([*([f"{value} {self.unit}"] if value else []), *facts]),
                ]
                figure = KeyFigure("", factor, name, "; ".join(filter(None, facts)))
                named = str(cell[self.headline_phrase]) if self.headline_phrase else name
                short = f"{named} {factor} faster than {against}"
        elif base is cell and not self.of_each:
            text = f"Nothing is significantly faster than {self.base or name}"
        if text or value:
            yield Told(
                text,
                verdict=verdict,
                interval=interval,
                short=short,
                figure=figure if value else None,
            )

    def largest(self, view: View) -> Told | None:
        """Return the largest gain over a baseline that is significant among all of the page."""
        panels = [panel.where(self.where) for panel in view.panels]
        count = sum(len(panel.pairs) for panel in panels)
        found = [
            replace(told, label=panel.label)
            for panel in panels
            for cell, _ in panel.pairs
            for told in self._told(panel, cell, count)
            if told.short and told.interval is not None
        ]
        return max(found, key=lambda told: told.interval.estimate, default=None)  # type: ignore[union-attr]


def largest_gain(claim: AgainstBaseline, nothing: str) -> Callable[[View], str]:
    """Return the headline of the largest significant gain over a baseline.

    nothing: headline where no cell has one.
    """

    def headline(view: View) -> str:
        if not any(panel.cells for panel in view.panels):
            return NOTHING_COMPLETED
        told = claim.largest(view)
        if told is not None:
            return f"{told.label}: {told.short}"
        if any(panel.pairs for panel in view.panels):
            return nothing
        panel, best = min(
            ((p, cell) for p in view.panels for cell in claim.measure.ordered(p.cells)[:1]),
            key=lambda pair: claim.measure.estimate(pair[1]) or 0.0,
        )
        return f"{panel.label}: {claim.value(best)} {claim.unit}, {claim.name(best)}"

    return headline


NOTHING_COMPLETED = "No run of this study has completed yet"


def key_figures(claim: CellClaim) -> Callable[[View], list[KeyFigure]]:
    """Return the figures of the first screen: those of a claim's sentences."""
    return lambda view: [
        replace(told.figure, label=told.label) for told in claim.tell(view) if told.figure
    ]


@dataclass(frozen=True, kw_only=True)
class FarthestAccuracy(CellClaim):
    """The cell whose accuracy is farthest from its baseline, seed by seed; or each."""

    measure: Measure
    of_each: bool = False
    base: str = "the sequential program"

    def of(self, panel: CellPanel) -> Iterator[Told]:
        gaps = [
            (abs(gap), cell, base)
            for cell, base in panel.pairs
            if (gap := self.measure.gap(cell, base)) is not None
        ]
        chosen = gaps if self.of_each else sorted(gaps, key=lambda gap: -gap[0])[:1]
        for _, cell, base in chosen:
            words = self.name(cell), self.base or self.name(base)
            yield changed(self.measure, cell, base, words, len(gaps))


def held(
    measure: Measure,
    own: Cell,
    base: Cell,
    words: tuple[str, str],
    margin: float,
    comparisons: int,
) -> Told:
    """Return whether an accuracy is held: not significantly lower, and by its interval less than
    `margin` lower."""
    told = changed(measure, own, base, words, comparisons)
    verdict = non_inferiority(told.interval, margin)
    if verdict == "holds" and told.interval is not None and told.verdict != "same":
        text = f"{words[0]}: accuracy of {words[1]} held, {points_with_span(told.interval)}"
        told = replace(told, text=text)
    return replace(told, verdict=verdict)


def as_sentence(told: Told) -> str:
    """Return a claim with a full stop; names such as bf16 keep their small letter."""
    return f"{told.text.rstrip('.')}."
