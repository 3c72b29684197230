"""The page of a compression study: below which bandwidth each compressor pays, at what accuracy.

The time of a step is fitted to what was measured, as a function of the link's bandwidth:

    step = base of the compressor + slope · bytes it sends ÷ bandwidth

The base holds computing and coding; the slope, one for all, is 1 where sending is not hidden and
costs nothing beside the link.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from phalanx.report.cells import Cell, CellPanel, Measure, Row, baseline, change, derived, gain
from phalanx.report.claims import NOTHING_COMPLETED, TIMES, AgainstBaseline, held
from phalanx.report.content import Column, KeyFigure, words
from phalanx.report.format import amount, percent, points, span, two_decimals
from phalanx.report.marks import Axis, Bars, Lines
from phalanx.report.measures import RunMeasure
from phalanx.report.rank_measures import step_times
from phalanx.report.statistics import blocks
from phalanx.report.training import reader
from phalanx.report.training_frames import RUNS, over_seeds
from phalanx.report.training_page import ACCURACY
from phalanx.report.values import ChartSection, Page, Plot, Say, TableSpec, Told, View

NONE, MEMORY = "float32", "shared memory"
PHRASES = {"none": NONE, "powersgd": "PowerSGD", "topk": "top-k"}
WARM_UP_STEPS = 3
MARGIN = 0.005
"""A compressor holds the accuracy where it is seen to cost less than this, and not seen to cost
anything."""
LINE_WITHIN = 0.15  # steps farther than this from the fitted line do not lie on one
CURVE_POINTS = 60
GIGABIT_BYTES_PER_S = 125e6
STEP = Measure("step_s", "time of a step")
SENT = Measure("sent_bytes", how=lambda values: values[-1])
STEPS = AgainstBaseline(
    measure=Measure("timed_s"),
    of_each=True,
    base=NONE,
    units="steps",
    phrase="compressor",
    note="Steps: medians; intervals are corrected for the compressors of a place.",
)

# -- Rows ------------------------------------------------------------------------------------------


def of_run(run: RunMeasure) -> Mapping[str, Any]:
    """Return compressor and place of a run, the time of its steps and the bytes it sent."""
    if run.run is None:
        return {}
    compressor, link = str(run.run.config.get("compress", "none")), run.run.config.get("link")
    steps = step_times(r.steps for r in run.ranks.values()) if run.status == "completed" else []
    steps = steps[WARM_UP_STEPS:] or steps
    return {
        "compressor": PHRASES.get(compressor, compressor),
        "place": str(link or MEMORY),
        "bandwidth": bandwidth_of(str(link or MEMORY)),
        # Neighbouring steps are not independent: of one run medians of stretches, of several runs
        # the median of each.
        "step_s": median(steps) if steps else None,
        "stretches_s": blocks(steps) if steps else (),
        "sent_bytes": sent_bytes(run),
    }


def sent_bytes(run: RunMeasure) -> float | None:
    """Return the bytes a step in the last epoch, of the rank that sends the most."""
    sent = []
    for rank in run.ranks.values():
        last = rank.epochs[max(rank.epochs)] if rank.epochs else None
        if last is None or last.event.sent_bytes is None or not len(last.steps):
            return None
        sent.append(last.event.sent_bytes / len(last.steps))
    return max(sent, default=None)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shared memory first, then links from the fastest to the slowest; of a cell of one run its
    stretches count."""
    count = [(row["place"], row["compressor"]) for row in rows]
    for row in rows:
        alone = count.count((row["place"], row["compressor"])) == 1
        row["timed_s"] = row["stretches_s"] if alone else row["step_s"]
    return sorted(rows, key=lambda row: -(row["bandwidth"] or math.inf))


def compressor_rows(view: View) -> list[Row]:
    """Return a row a compressor: bytes, accuracy, and its steps in each place."""
    rows: dict[str, dict[str, Any]] = {}
    cells, fit = view.frame("cells"), fit_of(view)
    plain = next((r["sent_bytes"] for r in cells if r["compressor"] == NONE), None)
    for cell in cells:
        name = cell["compressor"]
        row = rows.setdefault(name, {"panel": "bytes", "compressor": name, "_runs": []})
        row["_runs"] += cell["_runs"]
        row["sent_bytes"] = sent = cell["sent_bytes"] or row.get("sent_bytes")
        row["fewer"] = plain / sent if sent and plain else None
        row[f"step {cell['panel']}"] = step_words(cell)
        if cell["panel"] == MEMORY:
            row |= {n: cell[n] for n in ("accuracy", "accuracy_low", "accuracy_high", "seeds")}
            row["accuracy_change"] = 0.0 if name == NONE else cell["accuracy_change"]
        row["pays"] = fit.pays(name) if fit is not None and name != NONE else None
        row["sent_mb"] = sent / 2**20 if sent else None
        fewer = f", {row['fewer']:.3g} times fewer" if row["fewer"] and name != NONE else ""
        row["words"] = f"{amount(sent)}{fewer}" if sent else ""
    return list(rows.values())


def step_words(cell: Row) -> str:
    gain = "" if cell["compressor"] == NONE or not cell["gain"] else f" ({cell['gain']:.2f})"
    return f"{1e3 * cell['step_s']:.3g}{gain}"


def accuracy_rows(view: View) -> list[Row]:
    rows = [r for r in view.frame("compressors") if r.get("accuracy") is not None]
    return [{**r, "panel": "accuracy", "words": percent(r["accuracy"], 2)} for r in rows]


def nearest_gigabit(view: View) -> str:
    """Return the link nearest to 1 Gbit/s, memory where there is none."""
    rated = [(row["bandwidth"], row["panel"]) for row in view.frame("cells") if row["bandwidth"]]
    near = min(rated, key=lambda r: abs(math.log(r[0] / GIGABIT_BYTES_PER_S)), default=(0, MEMORY))
    return near[1]


def nearest_rows(view: View) -> list[Row]:
    place = nearest_gigabit(view)
    return [{**row, "panel": f"time, {place}"} for row in view.by_panel.get(place, [])]


def bandwidth_rows(view: View) -> list[Row]:
    """Return measured steps, the fitted lines through them, and where these cross that of float32;
    nothing of fewer than two bandwidths."""
    cells = [row for row in view.frame("cells") if row["bandwidth"]]
    fit, rates = fit_of(view), [row["bandwidth"] for row in cells]
    if fit is None or len(set(rates)) < 2:
        return []
    rows = [_point(r["compressor"], r["bandwidth"], r["step_s"], "measured") for r in cells]
    crossings = {
        name: at
        for name in fit.bases_s
        if name != NONE and (at := fit.break_even_bandwidth(name)) and math.isfinite(at)
        if min(rates) / 10 <= at <= max(rates) * 10
    }
    low, high = (end([*rates, *crossings.values()]) for end in (min, max))
    for name in fit.bases_s:
        for i in range(CURVE_POINTS + 1):
            at = low * (high / low) ** (i / CURVE_POINTS)
            if (step_s := fit.step_s(name, at)) > 0:
                rows.append(_point(name, at, step_s, "fitted"))
    runs = [run for row in cells for run in row["_runs"]]
    rows += [_point(n, at, fit.step_s(n, at), "begins to pay") for n, at in crossings.items()]
    return [{**row, "_runs": runs} for row in rows]


def _point(name: str, bytes_per_s: float, step_s: float, kind: str) -> dict[str, Any]:
    head = {"panel": "imitated links", "compressor": name, "bits_per_s": 8 * bytes_per_s}
    return head | {"link": bandwidth_text(bytes_per_s), "step_ms": 1e3 * step_s, "kind": kind}


def fit_rows(view: View) -> list[Row]:
    fit = fit_of(view)
    if fit is None:
        return []
    return [
        {
            "compressor": name,
            "base_ms": 1e3 * base_s,
            "added_ms": 1e3 * (base_s - fit.bases_s.get(NONE, base_s)),
            "sent_bytes": fit.sent_bytes[name],
            "fit": fit,
        }
        for name, base_s in fit.bases_s.items()
    ]


# -- The fit ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Fit:
    bases_s: Mapping[str, float]
    sent_bytes: Mapping[str, float]
    slope: float
    worst: float
    """The largest difference from a measured step, as a part of it."""

    def step_s(self, compressor: str, bandwidth_bytes_per_s: float) -> float:
        wire_s = self.sent_bytes[compressor] / bandwidth_bytes_per_s
        return self.bases_s[compressor] + self.slope * wire_s

    def pays(self, compressor: str) -> str | None:
        """Return when a compressor pays, in words; None where nothing is known of it."""
        if not {compressor, NONE} <= set(self.bases_s):
            return None
        below = self.break_even_bandwidth(compressor)
        if below is None:
            return "never"
        return "always" if math.isinf(below) else f"below {bandwidth_text(below)}"

    def price(self, compressor: str) -> str:
        """Return when a compressor pays, and why; empty where nothing is known of it."""
        pays = self.pays(compressor)
        if pays is None:
            return ""
        added_ms = 1e3 * (self.bases_s[compressor] - self.bases_s[NONE])
        return {
            "never": "pays on no link, since it sends no fewer bytes",
            "always": f"pays on any link: a step without sending takes {-added_ms:.2f} ms less",
        }.get(pays, f"pays {pays}, it costs {added_ms:.2f} ms per step")

    def break_even_bandwidth(self, compressor: str) -> float | None:
        """The bandwidth in bytes per second below which steps are shorter than those of float32;
        infinite where they always are, None where they never are."""
        saved_bytes = self.sent_bytes[NONE] - self.sent_bytes[compressor]
        added_s = self.bases_s[compressor] - self.bases_s[NONE]
        if saved_bytes <= 0 or self.slope <= 0:
            return None if added_s >= 0 else math.inf
        return self.slope * saved_bytes / added_s if added_s > 0 else math.inf


def fit_of(view: View) -> Fit | None:
    return fit_cells(view.frame("cells"))


def fit_cells(cells: Sequence[Row]) -> Fit | None:
    """Fit the cells whose bandwidth and bytes are known, by least squares of the relative
    differences; None with fewer than two bandwidths."""
    known = [cell for cell in cells if cell["bandwidth"] and cell["sent_bytes"]]
    rates: dict[str, set[float]] = {}
    for cell in known:
        rates.setdefault(cell["compressor"], set()).add(cell["bandwidth"])
    names = [name for name, of_name in rates.items() if len(of_name) > 1]
    points = [cell for cell in known if cell["compressor"] in names]
    if not points:
        return None
    terms = [
        [*(cell["compressor"] == name for name in names), cell["sent_bytes"] / cell["bandwidth"]]
        for cell in points
    ]
    system = np.array(terms, float) / np.array([[cell["step_s"]] for cell in points])
    found = np.linalg.lstsq(system, np.ones(len(points)))[0]
    *bases_s, slope = map(float, found)
    return Fit(
        bases_s=dict(zip(names, bases_s, strict=True)),
        sent_bytes={cell["compressor"]: cell["sent_bytes"] for cell in reversed(points)},
        slope=slope,
        worst=float(np.abs(system @ found - 1).max()),
    )


_UNITS = {"kbit/s": 1e3 / 8, "mbit/s": 1e6 / 8, "gbit/s": 1e9 / 8}


def bandwidth_of(place: str) -> float | None:
    """Return the bytes per second of a link such as 1Gbit/s,1ms; None for memory."""
    found = re.search(r"([0-9.]+)\s*([kMG]bit/s)", place, re.IGNORECASE)
    return float(found[1]) * _UNITS[found[2].lower()] if found else None


def bandwidth_text(bytes_per_s: float) -> str:
    """Format a bandwidth in bits, as usual for links: 1.2 Gbit/s, 850 Mbit/s."""
    bits = 8 * bytes_per_s
    for unit, name in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= unit:
            return f"{bits / unit:.3g} {name}"
    return f"{bits / 1e3:.3g} kbit/s"


# -- Claims ----------------------------------------------------------------------------------------


def held_in_memory(view: View) -> dict[str, Told]:
    """Return how each compressor's accuracy compares with float32's, of whole trainings."""
    return {
        cell["compressor"]: held(
            ACCURACY, cell, base, (cell["compressor"], NONE), MARGIN, len(panel.cells) - 1
        )
        for panel in view.panels
        if panel.label == MEMORY
        for cell, base in panel.pairs
        if cell.by_seed("accuracy") and base.by_seed("accuracy")
    }


def accuracy_and_price(view: View) -> Iterator[Told]:
    """Yield the accuracy that each compressor costs, and the bandwidth below which it pays."""
    fit, accuracies = fit_of(view), held_in_memory(view)
    for name in dict.fromkeys(row["compressor"] for row in view.frame("cells")):
        told = accuracies.get(name, Told(""))
        price = fit.price(name) if fit and name != NONE else ""
        if told.text or price:
            text = "; ".join(filter(None, [told.text or name, price]))
            yield Told(text, verdict=told.verdict, interval=told.interval)
    if fit is not None and fit.worst > LINE_WITHIN:
        yield Told(
            f"Steps are within {percent(fit.worst, 0)} of base + {fit.slope:.2f} {TIMES} "
            "bytes \N{DIVISION SIGN} bandwidth: no line, the bandwidths above are guesses"
        )


def best_at(view: View, panel: CellPanel) -> tuple[Cell, Told] | None:
    """Return the compressor with the shortest step that is significantly faster and holds the
    accuracy; where none is known to hold it, of those that are not known to lose it."""
    accuracies = held_in_memory(view)
    faster = [
        (cell, told)
        for cell in STEP.ordered(panel.cells)
        for told in STEPS.told(panel, cell)
        if told.verdict == "higher"
    ]
    for wanted in ("holds", "unclear"):
        for cell, told in faster:
            known = accuracies.get(cell["compressor"])
            if (known.verdict if known else "unclear") == wanted:
                return cell, told
    return None


def headline(view: View) -> str:
    place = nearest_gigabit(view)
    panel = next((panel for panel in view.panels if panel.label == place), None)
    if panel is None:
        return NOTHING_COMPLETED
    chosen, where = best_at(view, panel), "in memory" if place == MEMORY else f"on {place}"
    if chosen is None or chosen[1].interval is None:
        return f"No compressor makes steps {where} significantly faster"
    name, told = chosen[0]["compressor"], held_in_memory(view).get(chosen[0]["compressor"])
    effect = "accuracy not measured" if told is None else "effect on accuracy unclear"
    effect = "accuracy held" if told and told.verdict == "holds" else effect
    return f"{name}: steps {chosen[1].interval.estimate:.2f}{TIMES} faster {where}, {effect}"


def keys(view: View) -> list[KeyFigure]:
    """Return the compressor that is faster and holds the accuracy, for each place."""
    figures = []
    accuracies = {row["compressor"]: row["accuracy"] for row in view.by_panel.get(MEMORY, [])}
    for panel in view.panels:
        if not (chosen := best_at(view, panel)):
            continue
        cell, interval = chosen[0], chosen[1].interval
        assert interval is not None, "it is faster"
        facts = [f"{1e3 * (STEP.estimate(cell) or 0):.3g} ms per step"]
        if accuracy := accuracies.get(cell["compressor"]):
            facts.append(f"{percent(accuracy, 2)} accuracy")
        figures.append(
            KeyFigure(
                panel.label,
                f"{interval.estimate:.2f}{TIMES}",
                cell["compressor"],
                f"{span(interval)}; {', '.join(facts)}",
            )
        )
    return figures


def facts(view: View) -> list[str]:
    known = [row for row in view.data.runs if row.get("model")]
    found = sorted({f"{r['model']} on {r['dataset']}, {r['ranks']} ranks" for r in known})
    plain = [row for row in view.frame("compressors") if row["compressor"] == NONE]
    sent = plain[0]["sent_bytes"] if plain else None
    return [*found, *([f"{amount(sent)} per step without compression"] if sent else [])]


# -- The page --------------------------------------------------------------------------------------


def columns(view: View) -> list[Column[Row]]:
    """Return the columns of the compressors: one a place."""
    places = ["memory" if p.label == MEMORY else p.label for p in view.panels]
    return [
        words("sent as", "compressor", short="sent as"),
        Column("bytes per step", "sent_bytes", amount),
        Column("fewer", "fewer", "{:.3g}".format, short="fewer"),
        *(
            Column(f"{name} (ms)", f"step {panel.label}", short=name)
            for name, panel in zip(places, view.panels, strict=True)
        ),
        Column("accuracy", "accuracy", two_decimals, short="accuracy"),
        Column("points", "accuracy_change", points),
        Column("over seeds", over_seeds),
        words("begins to pay", "pays"),
    ]


def _steps_plot(name: str, **more: Any) -> Plot:
    return Plot(
        name=name,
        title="Time of a step",
        caption="Median over steps of the slowest rank, without the first ones; in brackets the "
        "speed-up over no compression.",
        source="step events: all times",
        mark=Bars(
            by="compressor",
            x=Axis("step_ms", "ms of a step", zero=True),
            colour="--mpi",
            words="words",
            tooltip=("compressor", "words|ms of a step"),
        ),
        **more,
    )


SENT_PLOT = Plot(
    name="sent",
    title="Bytes of a step",
    caption="Bytes as passed to MPI, and the reduction factor relative to no compression.",
    source="epoch events: sent_bytes",
    frame="compressors",
    known="sent_mb",
    mark=Bars(
        by="compressor",
        x=Axis("sent_mb", "MB that the busiest rank sends in a step", zero=True),
        colour="--mpi",
        words="words",
        tooltip=("compressor", "words|bytes"),
    ),
)
ACCURACY_PLOT = Plot(
    name="accuracy",
    title="Accuracy after the last epoch",
    caption="Mean over seeds; bars run from the worst seed to the best.",
    source="evaluation events: correct, samples of all ranks",
    frame="accuracies",
    mark=Lines(
        x=Axis("accuracy", "final validation accuracy", form=".1%"),
        y=Axis("compressor", scale="names"),
        series="compressor",
        joined=False,
        spread=True,
        tooltip=("compressor", "words|mean", "seeds:Q"),
    ),
)
_TOOLTIP = ("compressor", "link|bandwidth", "step_ms|step (ms)|,.4~g", "kind")
_AXES: dict[str, Any] = {
    "x": Axis("bits_per_s", "bandwidth of the link (bit/s)", form=".0s", scale="log"),
    "y": Axis("step_ms", "ms of a step", scale="log"),
    "series": "compressor",
    "tooltip": _TOOLTIP,
}
BANDWIDTH_PLOT = Plot(
    name="by-bandwidth",
    title="Step by bandwidth",
    caption=f"Filled marks are measured; lines are the fit base + slope {TIMES} bytes "
    f"\N{DIVISION SIGN} bandwidth; an open mark is where a compressor's line crosses that of "
    "float32: compression pays to the left of it.",
    source="epoch events: sent_bytes; step events: all times",
    frame="bandwidths",
    mark=(
        Lines(where="datum.kind == 'fitted'", marked=False, picks=False, pixels=340, **_AXES),
        Lines(where="datum.kind == 'measured'", joined=False, **_AXES),
        Lines(
            where="datum.kind == 'begins to pay'", joined=False, hollow=True, picks=False, **_AXES
        ),
    ),
)


def _fit_note(rows: Sequence[Row]) -> str:
    fit = rows[0]["fit"]
    return (
        f"step = base + {fit.slope:.3f} {TIMES} bytes \N{DIVISION SIGN} bandwidth; all measured "
        f"steps lie within {percent(fit.worst, 1)}."
    )


COMPRESSION = Page(
    read=reader(
        of_run,
        counts=lambda row: row.get("step_s") is not None,
        panel="place",
        finish=in_order,
    ),
    cell=("compressor",),
    baseline=baseline(compressor=NONE),
    quantities=(
        *(STEP, SENT, ACCURACY, gain("gain", STEP)),
        change("accuracy_change", ACCURACY),
        derived("step_ms", lambda row: 1e3 * row["step_s"]),
        derived("words", step_words),
    ),
    frames={
        "compressors": compressor_rows,
        "accuracies": accuracy_rows,
        "nearest": nearest_rows,
        "bandwidths": bandwidth_rows,
        "fit": fit_rows,
    },
    headline=headline,
    facts=facts,
    keys=keys,
    claims=(
        Say(
            accuracy_and_price,
            note="Accuracy is compared seed by seed. A compressor keeps it if the interval of the "
            f"difference lies above \N{MINUS SIGN}{MARGIN * 100:g} points and not entirely below "
            "0. It pays below the bandwidth at which its fitted line crosses that of float32.",
        ),
        STEPS,
    ),
    leading=(SENT_PLOT, _steps_plot("time", frame="nearest"), ACCURACY_PLOT),
    leading_title="Bytes, time and accuracy",
    sections=(
        ChartSection("Where it begins to pay", (BANDWIDTH_PLOT,)),
        ChartSection("A step in each place", (_steps_plot("step"),)),
    ),
    tables=(
        TableSpec(
            title="Compressors",
            note="Steps are medians, in brackets the speed-up over no compression. Accuracy is the "
            "mean over seeds, with the worst and the best.",
            frame="compressors",
            columns=columns,
            on_terminal=True,
        ),
        TableSpec(
            title="Fit",
            note=_fit_note,
            frame="fit",
            columns=(
                words("sent as", "compressor"),
                Column("base (ms)", "base_ms", "{:.2f}".format),
                Column("added to float32 (ms)", "added_ms", "{:+.2f}".format),
                Column("bytes per step", "sent_bytes", amount),
            ),
        ),
        RUNS,
    ),
)
