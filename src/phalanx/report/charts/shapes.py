"""Shapes that charts are put together from: marks on lines, bars, spans, rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from phalanx.report.charts.figure import AnyChart, Row, distinct, numbers, table
from phalanx.report.charts.theme import Series, faded_unless, highlight

BAR_PIXELS = 30
AROUND_BARS_PIXELS = 40
ROOM_FOR_WORDS = 1.45  # of the axis of bars, for the words at their ends


def lines(
    x: alt.X,
    y: alt.Y,
    series: Series,
    tooltip: Sequence[alt.Tooltip],
    *,
    detail: str | None = None,
    dash: alt.StrokeDash | None = None,
    spread: tuple[str, str] | None = None,
    joined: bool = True,
    also_picked: Sequence[str] = (),
    base: alt.Chart | None = None,
) -> AnyChart:
    """A line a series with a mark at every row; a click on the legend picks one out.

    detail: field that lines are told apart by, beside the series. spread: fields between which a
    bar runs through the mark. also_picked: further fields that legends pick out.
    """
    picked = highlight(series.field)
    also = [highlight(field) for field in also_picked]
    chart = (base or alt.Chart(table())).encode(
        x=x, y=y, color=series.color, opacity=faded_unless(picked, *also)
    )
    layers: list[AnyChart] = []
    if joined:
        channels = {"detail": detail, "strokeDash": dash}
        line = chart.mark_line(strokeWidth=2).encode(**{k: v for k, v in channels.items() if v})
        layers.append(line.add_params(*also) if also else line)
    if spread:
        low = alt.Y(f"{spread[0]}:Q", scale=y["scale"])
        layers.append(chart.mark_rule(strokeWidth=1.5).encode(y=low, y2=f"{spread[1]}:Q"))
    marks = chart.mark_point(size=75, filled=True, stroke="var(--surface)", strokeWidth=1.2)
    layers.append(marks.encode(shape=series.shape, tooltip=list(tooltip)).add_params(picked))
    return alt.layer(*layers)


def bars(
    rows: Sequence[Row],
    field: str,
    title: str,
    *,
    by: str,
    tooltip: Sequence[alt.Tooltip],
    colour: str | Series,
    spread: tuple[str, str] | None = None,
    offset: alt.YOffset | None = None,
    **x: Any,
) -> AnyChart:
    """A bar a row, or a row and series, beside each other.

    spread: fields between which a line runs along the bar. x: more of the axis of `field`.
    """
    chart = alt.Chart(table()).encode(y=names_axis(rows, by))
    if offset is not None:
        chart = chart.encode(yOffset=offset)
    drawn = chart.mark_bar(cornerRadiusEnd=2, height=alt.RelativeBandSize(band=0.7))
    drawn = chart.mark_bar(cornerRadiusEnd=2) if offset is not None else drawn
    fill = alt.value(f"var({colour})") if isinstance(colour, str) else colour.color
    layers: list[AnyChart] = [
        drawn.encode(x=alt.X(f"{field}:Q", title=title, **x), color=fill, tooltip=list(tooltip))
    ]
    if spread:
        line = chart.mark_rule(color="var(--ink-soft)")
        layers.append(line.encode(x=f"{spread[0]}:Q", x2=f"{spread[1]}:Q"))
    return alt.layer(*layers)


def bars_with_words(
    rows: Sequence[Row],
    field: str,
    title: str,
    *,
    by: str,
    tooltip: Sequence[alt.Tooltip],
    colour: str,
    formula: str | None = None,
    **axis: Any,
) -> AnyChart:
    """Bars with the field `words` at their ends, and an upright stroke at the field `formula`."""
    scale = words_scale(rows, field, formula)
    x: dict[str, Any] = {"scale": scale, "axis": alt.Axis(**axis)}
    drawn = bars(rows, field, title, by=by, tooltip=tooltip, colour=colour, **x)
    chart = alt.Chart(table()).encode(y=names_axis(rows, by))
    strokes = formula_strokes(chart, rows, formula, scale) if formula else []
    return alt.layer(drawn, *strokes, words(chart, field, scale))


def spans(
    rows: Sequence[Row],
    title: str,
    *,
    by: str,
    ends: tuple[str, str],
    kinds: Mapping[str, str],
    kind: str,
    tooltip: Sequence[alt.Tooltip],
    legend: alt.Legend | None = None,
    order: Sequence[str] | None = None,
    picked: bool = True,
    **x: Any,
) -> AnyChart:
    """Pieces from one end to the other on the bar that they belong to, coloured by their kind.

    kinds: colour of each kind, in the order of the legend.
    """
    scale = alt.Scale(domain=list(kinds), range=[f"var({colour})" for colour in kinds.values()])
    fill = alt.Fill(f"{kind}:N", title=None, scale=scale, legend=legend or alt.Legend(columns=3))
    chart: alt.Chart = (
        alt.Chart(table())
        .mark_bar(stroke="var(--surface)", strokeWidth=1, height=alt.RelativeBandSize(band=0.76))
        .encode(
            y=names_axis(rows, by, order),
            x=alt.X(f"{ends[0]}:Q", title=title, axis=alt.Axis(grid=True), **x),
            x2=f"{ends[1]}:Q",
            fill=fill,
            tooltip=list(tooltip),
        )
    )
    if not picked:
        return chart
    selection = highlight(kind)
    return chart.encode(opacity=faded_unless(selection)).add_params(selection)


def span_text(
    rows: Sequence[Row],
    *,
    by: str,
    ends: tuple[str, str],
    kinds: Mapping[str, str],
    kind: str,
    text: str,
    shown: str,
    order: Sequence[str] | None = None,
) -> alt.Chart:
    """Text in the middle of those pieces that have room for it, in an ink for their colour."""
    inks = [f"var({colour.replace('--', '--on-')})" for colour in kinds.values()]
    chart: alt.Chart = (
        alt.Chart(table())
        .transform_filter(shown)
        .transform_calculate(middle=f"(datum.{ends[0]} + datum.{ends[1]}) / 2")
        .mark_text(fontSize=10, fontWeight=600)
        .encode(
            y=names_axis(rows, by, order),
            x="middle:Q",
            text=text,
            color=alt.Color(f"{kind}:N", scale=alt.Scale(domain=list(kinds), range=inks)),
        )
    )
    return chart


def names_axis(rows: Sequence[Row], by: str, order: Sequence[str] | None = None) -> alt.Y:
    """Names from the top in the order of the rows."""
    axis = alt.Axis(domain=False, labelLimit=250)
    return alt.Y(f"{by}:N", title=None, sort=list(order or distinct(rows, by)), axis=axis)


def words_scale(rows: Sequence[Row], *fields: str | None) -> alt.Scale:
    """From 0 to the longest bar, with room for words behind it."""
    known = [number for field in fields if field for number in numbers(rows, field)]
    return alt.Scale(domain=[0, max(known) * ROOM_FOR_WORDS or 1.0], nice=False)


def words(chart: alt.Chart, field: str, scale: alt.Scale) -> alt.Chart:
    """The field `words` at the end of a bar."""
    text = chart.mark_text(align="left", dx=7, fontSize=11, color="var(--ink-soft)")
    drawn: alt.Chart = text.encode(x=alt.X(f"{field}:Q", scale=scale), text="words:N")
    return drawn


def formula_strokes(
    chart: alt.Chart, rows: Sequence[Row], field: str, scale: alt.Scale
) -> list[AnyChart]:
    if not numbers(rows, field):
        return []
    known = chart.transform_filter(f"datum.{field} != null")
    return [
        known.mark_tick(color="var(--ink)", thickness=2, size=20).encode(
            x=alt.X(f"{field}:Q", scale=scale)
        )
    ]


def dashed(base: alt.Chart | None = None) -> alt.Chart:
    """A dashed rule for what is ideal, a floor or a reference; encode where it stands."""
    chart: alt.Chart = (base or alt.Chart(table())).mark_rule(
        color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5
    )
    return chart


def dashed_line(base: alt.Chart, text: str, last: str, where: Mapping[str, Any]) -> AnyChart:
    """A dashed line with its name at the end.

    last: the filter that leaves the last point.
    """
    line = base.mark_line(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5, clip=True)
    name = base.transform_filter(last).mark_text(
        align="right", dx=-8, dy=-7, color="var(--ink-soft)", fontSize=12
    )
    return alt.layer(line.encode(**where), name.encode(**where, text=alt.value(text)))


def bars_height(rows: Sequence[Row], by: str, pixels: int = BAR_PIXELS) -> int:
    return len(distinct(rows, by)) * pixels + AROUND_BARS_PIXELS
