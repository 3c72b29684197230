"""Rows of a compression study: bytes, steps and accuracy by compressor and place. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from phalanx.report.cells import Cell, CellPanel, Measure, Row
from phalanx.report.claims import NOTHING_COMPLETED, TIMES, AgainstBaseline, held
from phalanx.report.compression_fit import Fit, bandwidth_of, bandwidth_text, fit_cells
from phalanx.report.content import KeyFigure
from phalanx.report.format import amount, percent, span
from phalanx.report.measures import RunMeasure
from phalanx.report.statistics import blocks
from phalanx.report.steps import step_times
from phalanx.report.training_page import ACCURACY
from phalanx.report.values import Told, View

NONE, MEMORY = "float32", "shared memory"
PHRASES = {"none": NONE, "powersgd": "PowerSGD", "topk": "top-k"}
WARM_UP_STEPS = 3
MARGIN = 0.005
"""A compressor holds the accuracy where it is seen to cost less than this, and not seen to cost
anything."""
LINE_WITHIN = 0.15  # steps farther than this from the fitted line do not lie on one
CURVE_POINTS = 60
GIGABIT_BYTES_PER_S = 125e6


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


STEP = Measure(column="step_s", noun="time of a step")
TIMED = Measure(column="timed_s")
SENT = Measure(column="sent_bytes", how=lambda values: values[-1])


def fit_of(view: View) -> Fit | None:
    return fit_cells(view.frame("cells"))


def nearest_gigabit(view: View) -> str:
    """Return the link nearest to 1 Gbit/s, memory where there is none."""
    rated = [(row["bandwidth"], row["panel"]) for row in view.frame("cells") if row["bandwidth"]]
    near = min(rated, key=lambda r: abs(math.log(r[0] / GIGABIT_BYTES_PER_S)), default=(0, MEMORY))
    return near[1]


def held_in_memory(view: View) -> dict[str, Told]:
    """Return how each compressor's accuracy compares with float32's, of whole trainings."""
    found: dict[str, Told] = {}
    for panel in view.panels:
        for cell, base in panel.pairs if panel.label == MEMORY else ():
            if cell.by_seed("accuracy") and base.by_seed("accuracy"):
                count, name = len(panel.cells) - 1, cell["compressor"]
                words = name, NONE
                found[name] = held(ACCURACY, cell, base, words, MARGIN, count)
    return found


def accuracy_and_price(view: View) -> Iterator[Told]:
    """Yield the accuracy that each compressor costs, and the bandwidth below which it pays."""
    fit, accuracies = fit_of(view), held_in_memory(view)
    names = dict.fromkeys(row["compressor"] for row in view.frame("cells"))
    for name in names:
        told = accuracies.get(name, Told(text=""))
        price = fit.price(name, NONE) if fit and name != NONE else ""
        if told.text or price:
            text = "; ".join(filter(None, [told.text or name, price]))
            yield Told(text=text, verdict=told.verdict, interval=told.interval)
    if fit is not None and fit.worst > LINE_WITHIN:
        yield Told(
            text=f"Steps are within {percent(fit.worst, 0)} of base + {fit.slope:.2f} {TIMES} "
            "bytes \N{DIVISION SIGN} bandwidth: no line, the bandwidths above are guesses"
        )


STEPS = AgainstBaseline(
    measure=TIMED,
    of_each=True,
    base=NONE,
    units="steps",
    phrase="compressor",
    note="Steps: medians; intervals are corrected for the compressors of a place.",
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
        chosen = best_at(view, panel)
        if chosen and chosen[1].interval:
            cell, told = chosen
            facts = [span(told.interval), f"{1e3 * (STEP.estimate(cell) or 0):.3g} ms per step"]  # type: ignore[arg-type]
            facts += (
                [f"{percent(a, 2)} accuracy"] if (a := accuracies.get(cell["compressor"])) else []
            )
            value = f"{chosen[1].interval.estimate:.2f}{TIMES}"
            beside = "; ".join([facts[0], ", ".join(facts[1:])])
            label, meaning = panel.label, cell["compressor"]
            figures.append(KeyFigure(label=label, value=value, meaning=meaning, beside=beside))
    return figures


def facts(view: View) -> list[str]:
    known = [row for row in view.data.runs if row.get("model")]
    found = sorted({f"{r['model']} on {r['dataset']}, {r['ranks']} ranks" for r in known})
    plain = [row for row in compressor_rows(view) if row["compressor"] == NONE]
    sent = plain[0]["sent_bytes"] if plain else None
    return [*found, *([f"{amount(sent)} per step without compression"] if sent else [])]


def compressor_rows(view: View) -> list[Row]:
    """Return a row a compressor: bytes, accuracy, and its steps in each place."""
    rows: dict[str, dict[str, Any]] = {}
    plain = next((r["sent_bytes"] for r in view.frame("cells") if r["compressor"] == NONE), None)
    fit = fit_of(view)
    for cell in view.frame("cells"):
        name = cell["compressor"]
        row = rows.setdefault(name, {"panel": "bytes", "compressor": name, "_runs": []})
        row["_runs"] += cell["_runs"]
        row["sent_bytes"] = sent = cell["sent_bytes"] or row.get("sent_bytes")
        row["fewer"] = plain / sent if sent and plain else None
        row[f"step {cell['panel']}"] = step_words(cell)
        if cell["panel"] == MEMORY:
            row |= {n: cell[n] for n in ("accuracy", "accuracy_low", "accuracy_high", "seeds")}
            row["accuracy_change"] = 0.0 if name == NONE else cell["accuracy_change"]
        row["pays"] = fit.pays(name, NONE) if fit is not None and name != NONE else None
        row["sent_mb"] = sent / 2**20 if sent else None
        fewer = f", {row['fewer']:.3g} times fewer" if row["fewer"] and name != NONE else ""
        row["words"] = f"{amount(sent)}{fewer}" if sent else ""
    return list(rows.values())


def step_words(cell: Row) -> str:
    gain = "" if cell["compressor"] == NONE or not cell["gain"] else f" ({cell['gain']:.2f})"
    return f"{1e3 * cell['step_s']:.3g}{gain}"


def accuracy_rows(view: View) -> list[Row]:
    rows = [r for r in compressor_rows(view) if r.get("accuracy") is not None]
    return [{**r, "panel": "accuracy", "words": percent(r["accuracy"], 2)} for r in rows]


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
        if name != NONE and (at := fit.break_even_bandwidth(name, NONE)) and math.isfinite(at)
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
    plain_s = fit.bases_s.get(NONE) if fit else None
    return [
        {
            "compressor": name,
            "base_ms": 1e3 * base_s,
            "added_ms": 1e3 * (base_s - (base_s if plain_s is None else plain_s)),
            "sent_bytes": fit.sent_bytes[name],
            "fit": fit,
        }
        for name, base_s in (fit.bases_s.items() if fit else ())
        if fit
    ]
