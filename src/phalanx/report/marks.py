"""Marks that rows are drawn with: lines, bars, spans. A chart is a value of one of them.

A mark names the columns that it shows; colours and shapes are found by the names in the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import altair as alt

from phalanx.report.content import AnyChart, Row, distinct, numbers, table
from phalanx.report.theme import (
    DASHES,
    LOG_FROM_RATIO,
    faded_unless,
    highlight,
    is_wide,
    log_ticks,
    series_of,
    tooltips,
)

ROOM_FOR_WORDS = 1.45  # length of the axis of bars, for the words at their ends
BAR_PIXELS, AROUND_BARS_PIXELS = 28, 44
Words = str | Callable[[Sequence[Row]], str]


@dataclass(frozen=True)
class Axis:
    """A column on an axis."""

    field: str
    title: Words = ""
    _: KW_ONLY
    form: str = ""
    """d3 format of the ticks."""
    scale: Literal["linear", "log", "auto", "counts", "names", "ordinal"] = "linear"
    """auto: logarithmic if the values are far apart; counts: whole numbers, the ones that occur;
    names: in the order of the rows."""
    zero: bool = False
    domain: tuple[float, float] | Callable[[Sequence[Row]], tuple[float, float]] | None = None
    labels: str = ""
    """Vega expression of the labels."""

    def channel(self, kind: Any, rows: Sequence[Row]) -> Any:
        """Return the column as a channel of the chart of `rows`."""
        title = self.title if isinstance(self.title, str) else self.title(rows)
        if self.scale in ("names", "ordinal"):
            axis = alt.Axis(labelLimit=250, labelAngle=0)
            sort = distinct(rows, self.field) if self.scale == "names" else "ascending"
            kind_of = "N" if self.scale == "names" else "O"
            return kind(f"{self.field}:{kind_of}", title=title or None, sort=sort, axis=axis)
        scale, axis_of = self._scale(numbers(rows, self.field))
        if self.domain is not None:
            ends = self.domain(rows) if callable(self.domain) else self.domain
            scale = {"domain": list(ends), "nice": False}
        axis_of |= {"format": self.form} if self.form else {}
        axis_of |= {"labelExpr": self.labels, "labelOverlap": True} if self.labels else {}
        if scale.get("type") == "log" and title:
            title = f"{title} (logarithmic)"
        return kind(
            f"{self.field}:Q", title=title, scale=alt.Scale(**scale), axis=alt.Axis(**axis_of)
        )

    def _scale(self, values: Sequence[float]) -> tuple[dict[str, Any], dict[str, Any]]:
        if not values:  # no run has recorded it
            return {}, {}
        if self.scale == "counts":
            whole = sorted({int(value) for value in values})
            is_log = whole[0] > 0 and whole[-1] / whole[0] > LOG_FROM_RATIO / 4
            scale = {"type": "log", "base": 2, "padding": 14, "nice": False}
            own = scale if is_log else {"domain": [whole[0] - 0.3, whole[-1] + 0.3]}
            return own, {"values": whole, "format": "d"}
        if self.scale == "log" or (self.scale == "auto" and is_wide(values)):
            ticks = log_ticks(values).to_dict() if min(values) > 0 else {}
            return {"type": "log", "padding": 12, "nice": False}, ticks
        return {"zero": self.zero, **({} if self.zero else {"padding": 12})}, {}


@dataclass(frozen=True, kw_only=True)
class Lines:
    """A line a series with a mark at every row; a click on the legend picks a series out."""

    x: Axis
    y: Axis
    series: str = "strategy"
    look: str = ""
    """Column by which colours are found, where it is not the series."""
    title: str = ""
    """Title of the legend."""
    detail: str = ""
    """Column that tells further lines of one series apart."""
    dash: str = ""
    shape: str = ""
    """Columns of the dashes and of the shapes, where these are not those of the series."""
    spread: bool = False
    """A bar runs through the mark from the lowest value to the highest."""
    joined: bool = True
    marked: bool = True
    hollow: bool = False
    cross: bool = False
    where: str = ""
    """Vega expression that rows fulfil."""
    ideal: str = ""
    """Vega expression over a row of a dashed line."""
    ideal_name: str = "ideal"
    level: str | float | None = None
    """Height of a dashed level, or the column that it is the first value of."""
    limit: str = ""
    """Column whose least value is a vertical line where rows lie beyond it."""
    limit_name: str = ""
    choose: str = ""
    """Column of which one value is shown, chosen below the chart; at first that of the last row."""
    tooltip: Sequence[str] = ()
    picks: bool = True
    pixels: int | None = None

    def height(self, rows: Sequence[Row]) -> int | None:
        if self.y.scale == "names":
            return bars_height(rows, self.y.field)
        return self.pixels

    def layers(self, rows: Sequence[Row]) -> list[AnyChart]:
        x, y = self.x.channel(alt.X, rows), self.y.channel(alt.Y, rows)
        series = series_of(self.series, rows, self.look, self.title)
        picked = highlight(self.series)
        base = alt.Chart(table())
        if self.choose:
            choice = alt.binding_select(
                options=distinct(rows, self.choose), name=f"{self.choose.capitalize()} "
            )
            first = str(rows[0][self.choose])
            shown = alt.param(name=f"{self.choose}_shown", value=first, bind=choice)
            base = base.transform_filter(f"datum.{self.choose} === {self.choose}_shown")
            base = base.add_params(shown)
        if self.where:
            base = base.transform_filter(self.where)
        chart = base.encode(x=x, y=y, color=series.color, opacity=faded_unless(picked))
        layers = [*self._references(rows, x, y)]
        if self.joined:
            line = chart.mark_line(strokeWidth=2)
            how: dict[str, Any] = {"detail": f"{self.detail}:N"} if self.detail else {}
            if self.dash:
                how["strokeDash"] = _dashes(self.dash, rows)
            elif not self.marked:
                how["strokeDash"] = series.dash
            layers.append(line.encode(**how))
        if self.spread:
            rule, is_flat = chart.mark_rule(strokeWidth=1.5), self.y.scale == "names"
            along, scale = (self.x, x["scale"]) if is_flat else (self.y, y["scale"])
            ends = [f"{along.field}_{end}:Q" for end in ("low", "high")]
            if is_flat:
                layers.append(rule.encode(x=alt.X(ends[0], scale=scale), x2=ends[1]))
            else:
                layers.append(rule.encode(y=alt.Y(ends[0], scale=scale), y2=ends[1]))
        if self.marked:
            layers.append(self._points(chart, rows, series))
        if self.picks:
            layers[-1] = layers[-1].encode(tooltip=tooltips(*self.tooltip)).add_params(picked)
        return layers

    def _points(self, chart: alt.Chart, rows: Sequence[Row], series: Any) -> alt.Chart:
        look: dict[str, Any] = {"size": 75, "stroke": "var(--surface)", "strokeWidth": 1.2}
        if self.cross:
            look |= {"shape": "cross", "angle": 45, "size": 190, "color": "var(--ink)"}
            chart = chart.encode(color=alt.value("var(--ink)"))
        if self.hollow:
            look = {"size": 130, "strokeWidth": 1.8}
        marks: alt.Chart = chart.mark_point(filled=not self.hollow, **look)
        if self.cross:
            return marks
        other = series_of(self.shape, rows, "", self.shape) if self.shape else series
        shaped: alt.Chart = marks.encode(shape=other.shape)
        return shaped

    def _references(self, rows: Sequence[Row], x: Any, y: Any) -> list[AnyChart]:
        """Return what lines are held to: a limit, an ideal, a level."""
        layers: list[AnyChart] = []
        if self.limit and any(_number(r[self.x.field]) > _number(r[self.limit]) for r in rows):
            beyond = alt.Chart(table()).transform_aggregate(least=f"min({self.limit})")
            at = alt.X("least:Q", scale=x["scale"])
            name = self.limit_name.format(int(min(numbers(rows, self.limit))))
            layers.append(beyond.mark_rule(color="var(--axis)").encode(x=at))
            label = beyond.mark_text(baseline="bottom", dy=-5, fontSize=11)
            ink = alt.value("var(--ink-soft)")
            layers.append(label.encode(x=at, y=alt.value(0), text=alt.value(name), color=ink))
        if self.ideal:
            base = alt.Chart(table()).transform_calculate(ideal=self.ideal)
            base = base.transform_filter("datum.ideal != null")
            base = base.transform_aggregate(ideal="min(ideal)", groupby=[self.x.field])
            where = {"x": x, "y": alt.Y("ideal:Q", scale=y["scale"])}
            last = f"datum.{self.x.field} == {max(numbers(rows, self.x.field))!r}"
            line = base.mark_line(clip=True, **DASHED).encode(**where)
            name_of = base.transform_filter(last).mark_text(
                align="right", dx=-8, dy=-7, color="var(--ink-soft)", fontSize=12
            )
            layers += [line, name_of.encode(**where, text=alt.value(self.ideal_name))]
        if self.level is not None:
            height = self.level if isinstance(self.level, float) else rows[0][self.level]
            layers.append(alt.Chart(table()).mark_rule(**DASHED).encode(y=alt.datum(height)))
        return layers


DASHED: dict[str, Any] = {"color": "var(--ideal)", "strokeDash": [4, 4], "strokeWidth": 1.5}
"""Look of what is ideal, a floor or a reference."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A bar a row, with words at its end."""

    by: str
    x: Axis
    colour: str = ""
    """CSS variable, where colours are not those of a series."""
    series: str = ""
    """Column that several bars of one name differ in; they stand beside each other."""
    spread: bool = False
    words: str = ""
    """Column of words at the end of the bar."""
    formula: str = ""
    """Column at which an upright stroke stands."""
    level: str = ""
    """Column that a dashed line stands at the first value of."""
    tooltip: Sequence[str] = ()

    def height(self, rows: Sequence[Row]) -> int:
        return (
            len(rows) * BAR_PIXELS + AROUND_BARS_PIXELS
            if self.series
            else bars_height(rows, self.by)
        )

    def layers(self, rows: Sequence[Row]) -> list[AnyChart]:
        x = self.x.channel(alt.X, rows)
        if self.words or self.formula:
            known = numbers(rows, self.x.field)
            known += numbers(rows, self.formula) if self.formula else []
            x["scale"] = alt.Scale(domain=[0, max(known) * ROOM_FOR_WORDS or 1.0], nice=False)
        chart = alt.Chart(table()).encode(y=names_axis(rows, self.by))
        if self.series:
            order = distinct(rows, self.series)
            chart = chart.encode(yOffset=alt.YOffset(f"{self.series}:N", sort=order))
        fill: Any = alt.value(f"var({self.colour})")
        if not self.colour:
            fill = series_of(
                self.series or self.by, rows, "", "", has_legend=bool(self.series)
            ).color
        how: dict[str, Any] = {} if self.series else {"height": alt.RelativeBandSize(band=0.7)}
        drawn = chart.mark_bar(cornerRadiusEnd=2, **how)
        layers = [drawn.encode(x=x, color=fill, tooltip=tooltips(*self.tooltip))]
        if self.spread and numbers(rows, f"{self.x.field}_low"):
            ends = {"x": f"{self.x.field}_low:Q", "x2": f"{self.x.field}_high:Q"}
            layers.append(chart.mark_rule(color="var(--ink-soft)").encode(**ends))
        if self.formula:
            layers += formula_strokes(chart, rows, self.formula, x["scale"])
        if self.words:
            layers.append(_end_words(chart, self.x.field, self.words, x["scale"]))
        if self.level and rows[0][self.level] is not None:
            rule = alt.Chart(table()).mark_rule(**DASHED)
            layers.append(rule.encode(x=alt.datum(rows[0][self.level])))
        return layers


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Pieces from one end to the other on the bar that they belong to, coloured by their kind."""

    by: str
    ends: tuple[str, str]
    title: str
    kind: str
    colours: Mapping[str, str]
    """CSS variable of each kind, in the order of the legend."""
    text: str = ""
    """Column of the text within pieces that have room for it."""
    room: float = 0.05
    """Part of the longest bar that a piece with text has at least."""
    tick: str = ""
    """Column of an upright stroke on the bar."""
    whole: str = ""
    words: str = ""
    """Columns of the end of the whole bar, and of the words there."""
    tooltip: Sequence[str] = ()
    letters: bool = False
    """The legend has the first letter of each kind, which stands in the pieces."""

    def height(self, rows: Sequence[Row]) -> int:
        return bars_height(rows, self.by)

    def layers(self, rows: Sequence[Row]) -> list[AnyChart]:
        kinds = {kind: c for kind, c in self.colours.items() if kind in distinct(rows, self.kind)}
        columns: dict[str, Any] = {"columns": 2}
        if self.letters:
            columns["labelExpr"] = "upper(slice(datum.label, 0, 1)) + '  ' + datum.label"
        scale = alt.Scale(domain=list(kinds), range=[f"var({c})" for c in kinds.values()])
        fill = alt.Fill(f"{self.kind}:N", title=None, scale=scale, legend=alt.Legend(**columns))
        picked, y = highlight(self.kind), names_axis(rows, self.by)
        end = max(numbers(rows, self.whole or self.ends[1]))
        along = alt.Scale(domain=[0, end * ROOM_FOR_WORDS]) if self.words else alt.Scale()
        look: dict[str, Any] = {"stroke": "var(--surface)", "strokeWidth": 1}
        bars = alt.Chart(table()).mark_bar(**look, height=alt.RelativeBandSize(band=0.76))
        x = alt.X(f"{self.ends[0]}:Q", title=self.title, axis=alt.Axis(grid=True), scale=along)
        drawn = bars.encode(
            y=y, x=x, x2=f"{self.ends[1]}:Q", fill=fill, opacity=faded_unless(picked)
        )
        layers = [drawn.encode(tooltip=tooltips(*self.tooltip)).add_params(picked)]
        if self.text:
            layers.append(self._text(kinds, y, self.room * end))
        base = alt.Chart(table()).encode(y=y)
        if self.tick:
            layers += formula_strokes(base, rows, self.tick, along)
        if self.words:
            layers.append(_end_words(base, self.whole, self.words, along))
        return layers

    def _text(self, kinds: Mapping[str, str], y: Any, least: float) -> alt.Chart:
        inks = [f"var({colour.replace('--', '--on-')})" for colour in kinds.values()]
        first, last = (f"datum.{end}" for end in self.ends)
        chart = alt.Chart(table()).transform_filter(f"{last} - {first} >= {least}")
        chart = chart.transform_calculate(middle=f"({first} + {last}) / 2")
        colour = alt.Color(f"{self.kind}:N", scale=alt.Scale(domain=list(kinds), range=inks))
        made: alt.Chart = chart.mark_text(fontSize=10, fontWeight=600).encode(
            y=y, x="middle:Q", text=f"{self.text}:N", color=colour
        )
        return made


Mark = Lines | Bars | Spans
"""Drawing of rows: its layers, from the back, and its height in pixels, None for that of most."""


def names_axis(rows: Sequence[Row], by: str) -> alt.Y:
    """Names from the top in the order of the rows."""
    axis = alt.Axis(domain=False, labelLimit=250)
    return alt.Y(f"{by}:N", title=None, sort=distinct(rows, by), axis=axis)


def bars_height(rows: Sequence[Row], by: str) -> int:
    return len(distinct(rows, by)) * BAR_PIXELS + AROUND_BARS_PIXELS


def formula_strokes(
    chart: alt.Chart, rows: Sequence[Row], field: str, scale: alt.Scale
) -> list[AnyChart]:
    """Return upright strokes at the values of a column, where it has some."""
    if not numbers(rows, field):
        return []
    known = chart.transform_filter(f"datum.{field} != null")
    at = alt.X(f"{field}:Q", scale=scale)
    return [known.mark_tick(color="var(--ink)", thickness=2, size=20).encode(x=at)]


def _end_words(chart: alt.Chart, field: str, words: str, scale: alt.Scale) -> alt.Chart:
    text = chart.mark_text(align="left", dx=7, fontSize=11, color="var(--ink-soft)")
    made: alt.Chart = text.encode(x=alt.X(f"{field}:Q", scale=scale), text=f"{words}:N")
    return made


def _dashes(field: str, rows: Sequence[Row]) -> alt.StrokeDash:
    names = distinct(rows, field)
    dashes = [DASHES[i % len(DASHES)] for i in range(len(names))]
    legend = alt.Legend(symbolType="stroke", symbolSize=240, columns=4)
    scale = alt.Scale(domain=names, range=dashes)
    title = {"width": "ranks"}.get(field, field)
    return alt.StrokeDash(f"{field}:N", title=title, scale=scale, legend=legend)


def _number(value: object) -> float:
    return float(str(value))
