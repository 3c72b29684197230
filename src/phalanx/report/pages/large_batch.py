"""The page of a large-batch study: up to which batch each remedy holds the accuracy.

Each remedy is held to its own recipe at the smallest batch, or to the base recipe where it is that
one with another learning rate: what a change of the optimizer brings is not what a batch costs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from phalanx.records.divergence import has_diverged
from phalanx.records.schema import Setting
from phalanx.report.cells import Cell, Measure, Row, change, derived
from phalanx.report.claims import best_and_rivals, held
from phalanx.report.content import Column, KeyFigure, words
from phalanx.report.format import fixed, grouped, joined, percent, points, seconds, two_decimals
from phalanx.report.marks import Axis, Lines
from phalanx.report.measures import RunMeasure
from phalanx.report.training import reader
from phalanx.report.training_frames import RUNS
from phalanx.report.training_page import ACCURACY
from phalanx.report.values import ChartSection, Page, Plot, Say, TableSpec, Told, View

TARGET_STEP = 0.005
"""Targets are multiples of half a percentage point."""
MARGIN = 0.0025
"""A batch holds the accuracy where it is seen to cost less than this, and not seen to cost
anything."""
HIGHEST_LOSS = 10.0
"""Above, the curve of a training that diverges is cut off."""
LOSS_PANELS = 4
"""The largest batches: at small ones all remedies are much the same."""
KEY_FIGURES = 3
RULES = {"none": "plain", "linear": "linear", "sqrt": "square root"}


def of_run(run: RunMeasure) -> Mapping[str, Any]:
    """Return the remedy of a run, and whether it has diverged, which is a result of it."""
    if run.setting is None or run.run is None:
        # Parse the name, e.g. lamb-b1024-s0, if there are no records: such a batch counts.
        found = re.fullmatch(r".+-b(\d+)-s\d+", run.name)
        return {"batch_size": int(found[1])} if found else {}
    diverged = has_diverged(run.run.outcome)
    accuracy = run.final_accuracy if run.status == "completed" else None
    is_known = run.final_train_accuracy is not None and accuracy is not None
    steps = [len(epoch.steps) for rank in run.ranks.values() for epoch in rank.epochs.values()]
    return {
        "training": f"{run.setting.model} on {run.setting.dataset}",
        "remedy": remedy_of(run.setting),
        "batch_size": run.setting.global_batch_size,
        "has_warm_up": _warms_up(run.setting),
        "diverged": diverged,
        "has_result": (run.status == "completed" and bool(run.trained)) or diverged,
        "accuracy": accuracy,
        "gap": run.final_train_accuracy - accuracy if is_known else None,  # type: ignore[operator]
        "mean_epoch_s": run.epoch_s if run.status == "completed" else None,
        "updates_per_epoch": steps[0] if steps else None,
        "curve": "diverged" if diverged else run.status,
    }


def remedy_of(setting: Setting) -> str:
    """Return the remedy that a run applies to its large batch, by its setting."""
    if setting.optimizer in ("lars", "lamb"):
        return setting.optimizer.upper()
    rule = RULES[setting.learning_rate_rule]
    return f"{rule}, warm-up" if _warms_up(setting) else rule


def _warms_up(setting: Setting) -> bool:
    return float(setting.options.get("warmup_epochs", 0.0)) > 0


def recipe_at_the_smallest(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """Return the same remedy at the smallest batch, else the base recipe where its optimizer is
    the same."""
    smallest = {c["remedy"]: c for c in cells if c["batch_size"] == cell["smallest"]}
    plain, own = smallest.get("plain"), smallest.get(cell["remedy"])
    is_alike = plain is not None and plain["optimizer"] == cell["optimizer"]
    return own if own is not None else (plain if is_alike else None)


def batches(view: View) -> list[int]:
    """Return the batch sizes of the study, also those without a result."""
    return sorted({row["batch_size"] for row in view.data.runs if row.get("batch_size")})


def cells_of(view: View) -> list[Cell]:
    return [cell for panel in view.panels for cell in panel.cells]


def base_recipe(view: View) -> Cell | None:
    """Return the base recipe at the smallest batch, which has an accuracy."""
    found = [
        c for c in cells_of(view) if (c["remedy"], c["batch_size"]) == ("plain", c["smallest"])
    ]
    return found[0] if found and ACCURACY.estimate(found[0]) is not None else None


def remedies(view: View) -> list[str]:
    """Return the remedies in the order of the study."""
    known = [row["remedy"] for row in view.data.runs if row.get("has_result")]
    return list(dict.fromkeys(known))


def label_of(cell: Cell) -> str:
    return f"{cell['remedy']}, batch {cell['batch_size']:,}"


def compare(view: View, remedy: str, comparisons: int | None = None) -> list[tuple[int, Told]]:
    """Compare every larger batch of a remedy with what it is held to, the smallest first.

    A batch without a result is unclear. comparisons: made together; None: those of this remedy.
    """
    cells, smallest = cells_of(view), min(batches(view), default=0)
    larger = {
        c["batch_size"]: c for c in cells if c["remedy"] == remedy and c["batch_size"] > smallest
    }
    base = recipe_at_the_smallest(next(iter(larger.values())), cells) if larger else None
    if base is None:
        return []
    count = comparisons or len(larger)
    return [(size, held_to(base, larger.get(size), size, count)) for size in batches(view)[1:]]


def held_to(base: Cell, cell: Cell | None, size: int, comparisons: int = 1) -> Told:
    """Compare a cell with what it is held to, seed by seed."""
    subject = f"batch {size:,}"
    if cell is None:
        return Told(f"{subject}: none of its runs completed", verdict="unclear")
    gone = sum(row["diverged"] for row in cell.rows)
    if gone:
        return Told(f"{subject} diverged with {gone} of {len(cell.rows)} seeds", verdict="diverged")
    words = subject, label_of(base)
    told = held(ACCURACY, cell, base, words, MARGIN, comparisons)
    return replace(told, verdict="unclear") if any(r["diverged"] for r in base.rows) else told


def largest_held(results: Sequence[tuple[int, Told]]) -> int | None:
    """Return the largest batch up to which every batch of the study holds."""
    last = None
    for size, told in results:
        if told.verdict != "holds":
            break
        last = size
    return last


def reached(view: View) -> dict[str, int]:
    """Return each remedy's largest batch up to which all hold, corrected for all comparisons."""
    count = sum(cell["batch_size"] > cell["smallest"] for cell in cells_of(view))
    found = {name: largest_held(compare(view, name, count)) for name in remedies(view)}
    return {name: size for name, size in found.items() if size is not None}


def headline(view: View) -> str:
    base = base_recipe(view)
    if base is None:
        return "The recipe of the smallest batch has not run yet"
    found = reached(view)
    if not found:
        return f"No remedy is shown to keep the accuracy of batch {base['batch_size']:,}"
    best = max(found.values())
    same = joined([name for name, size in found.items() if size == best])
    return f"{same}: accuracy held up to batch {best:,}"


def keys(view: View) -> list[KeyFigure]:
    """Return the largest batch of each remedy that holds the accuracy, the largest first."""
    if base_recipe(view) is None:
        return []
    cells = {(c["remedy"], c["batch_size"]): c for c in cells_of(view)}
    furthest = sorted(reached(view).items(), key=lambda item: -item[1])[:KEY_FIGURES]
    return [
        KeyFigure(
            name,
            f"{size:,}",
            f"largest batch that keeps the accuracy, to {MARGIN * 100:g} points",
            percent(ACCURACY.estimate(cells[name, size]) or 0.0, 2),
        )
        for name, size in furthest
    ]


def holding(view: View) -> Iterator[Told]:
    """Yield the largest batch up to which each remedy holds, and the first that does not."""
    for name in remedies(view) if base_recipe(view) else ():
        results = compare(view, name)
        if results:
            size = largest_held(results)
            start = (
                f"accuracy held up to batch {size:,}"
                if size
                else "accuracy held at no larger batch"
            )
            first = next((told for _, told in results if told.verdict != "holds"), None)
            rest = f"; {first.text}" if first else ""
            yield Told(
                f"{name}: {start}{rest}",
                verdict=first.verdict if first else "holds",
                interval=first.interval if first else None,
            )


def best_remedies(view: View) -> Iterator[Told]:
    """Yield the remedy with the highest accuracy at each batch, where that is significant."""
    cells = cells_of(view)
    for size in batches(view)[1:]:
        at = [c for c in cells if c["batch_size"] == size]
        whole = [c for c in at if c.by_seed("accuracy") and not any(r["diverged"] for r in c.rows)]
        best = significantly_best(whole, replace(ACCURACY, paired=True))
        if best is not None:
            accuracy, base = ACCURACY.estimate(best), recipe_at_the_smallest(best, cells)
            name = f"best is {best['remedy']} with {percent(accuracy or 0.0, 2)}"
            told = held_to(base, best, size) if base else Told("")
            rest = f"; {told.text}" if told.text else ""
            yield replace(told, text=f"batch {size:,}: {name}{rest}")
        elif len(whole) > 1:
            yield Told(f"batch {size:,}: no remedy is clearly the best", verdict="unclear")


def significantly_best(cells: Sequence[Cell], measure: Measure) -> Cell | None:
    """Return the cell that is seen to be better than every other, seed by seed."""
    best, others, rivals = best_and_rivals(measure, cells)
    return best if others and len(others) + 1 == len(cells) and not rivals else None


def target(view: View) -> float | None:
    """Return the accuracy that time is measured to: the next half percentage point below the worst
    seed of the base recipe."""
    base = base_recipe(view)
    if base is None:
        return None
    return math.floor(min(base.values("accuracy")) / TARGET_STEP - 1e-9) * TARGET_STEP


def target_rows(view: View) -> list[Row]:
    """Return a row a cell: what it took to the target; means over the seeds that reached it."""
    wanted = target(view)
    return [_reaching(cell, wanted) for cell in view.frame("cells") if wanted is not None]


def _reaching(cell: Row, wanted: float) -> Row:
    hits = {
        row["seed"]: hit
        for row in cell["_cell"].rows
        if row["accuracy"] is not None
        and (
            hit := next(
                (e for e in row["_measure"].trained if (e.validation_accuracy or 0.0) >= wanted),
                None,
            )
        )
    }
    steps = cell["updates_per_epoch"] or 0
    found: dict[str, Any] = {"epochs": None, "updates": None, "to_target_s": None}
    if hits:
        epochs = fmean(hit.epoch + 1 for hit in hits.values())
        trained_s = fmean(hit.trained_s for hit in hits.values())
        found = {"epochs": epochs, "updates": epochs * steps, "to_target_s": trained_s}
    times = {seed: hit.trained_s for seed, hit in hits.items()}
    return {**cell, **found, "num_reached": len(hits), "_reached_s": times}


def soonest(view: View) -> Iterator[Told]:
    """Yield what reaches the target accuracy first, where that is significant."""
    rows = [r for r in view.frame("targets") if 0 < r["num_reached"] == r["runs"]]
    cells = [
        Cell(tuple({"seed": s, "reached_s": t, "row": row} for s, t in row["_reached_s"].items()))
        for row in rows
    ]
    reached_s = Measure("reached_s", how=fmean, paired=True)
    best, wanted = significantly_best(cells, reached_s), target(view)
    if best is not None and wanted is not None:
        row = best["row"]
        yield Told(
            f"{label_of(row['_cell'])}: first of {len(rows)} that reach {percent(wanted, 1)} "
            f"with every seed, after {seconds(row['to_target_s'])}, {row['epochs']:.1f} epochs, "
            f"{row['updates']:,.0f} updates"
        )


def loss_rows(view: View) -> list[Row]:
    """Return a row for each epoch of each run of the largest batches."""
    largest = batches(view)[1:][-LOSS_PANELS:]
    return [
        {
            "panel": f"batch {row['batch_size']:,}",
            "remedy": row["remedy"],
            "run": row["run"],
            "status": row["curve"],
            "warm_up": "with warm-up" if row["has_warm_up"] else "without",
            "epoch": epoch.epoch + 1,
            "train_loss": min(epoch.train_loss, HIGHEST_LOSS),
        }
        for row in view.data.rows
        if row["batch_size"] in largest
        for epoch in row["_measure"].trained
        if epoch.train_loss
    ]


def facts(view: View) -> list[str]:
    gone = sum(bool(row.get("diverged")) for row in view.data.runs)
    workloads = {f"{r['model']} on {r['dataset']}" for r in view.data.runs if "model" in r}
    return [*([f"{gone} diverged"] if gone else []), *sorted(workloads)]


# -- The page --------------------------------------------------------------------------------------


BATCH = Axis("batch_size", "batch in samples", scale="counts")
TOOLTIP = (
    *("remedy", "batch_size|batch|,", "learning_rate|learning rate|.4~g"),
    *("accuracy||.2%", "accuracy_low|worst seed|.2%", "accuracy_high|best seed|.2%", "gap||.2%"),
    *("runs|seeds", "diverged"),
)
_by_batch = partial(Lines, x=BATCH, series="remedy")
ACCURACY_PLOT = Plot(
    name="accuracy",
    title="Accuracy against batch, by remedy",
    caption="Mean over seeds; bars run from the worst seed to the best. Means exclude runs that "
    "diverged, which the table counts.",
    source="epoch and evaluation events: correct, samples of all ranks",
    known="accuracy",
    least=2,
    mark=_by_batch(
        y=Axis("accuracy", "final validation accuracy", form=".1%"),
        spread=True,
        tooltip=TOOLTIP,
    ),
)
GAP_PLOT = Plot(
    name="gap",
    title="Generalisation gap against batch",
    caption="Accuracy of the final model on training data minus that on validation data; bars run "
    "from the smallest to the largest over seeds.",
    source="training evaluation and evaluation events: correct, samples of all ranks",
    known="gap",
    least=2,
    mark=_by_batch(
        y=Axis("gap", "training \N{MINUS SIGN} validation accuracy", form=".1%", zero=True),
        spread=True,
        tooltip=TOOLTIP,
    ),
)
LOSS_PLOT = Plot(
    name="loss",
    title="Training loss by epoch",
    caption="Mean during each epoch; one line per seed. A line that stops early has diverged; "
    f"losses above {HIGHEST_LOSS:g} are drawn at that height.",
    source="epoch events: loss_sum, samples of all ranks",
    frame="losses",
    mark=Lines(
        x=Axis("epoch", "epoch"),
        y=Axis("train_loss", "training loss", scale="log"),
        series="remedy",
        detail="run",
        dash="warm_up",
        tooltip=("remedy", "run", "status", "epoch:Q", "train_loss|training loss|.5f"),
    ),
)


def _target_plot(name: str, field: str, title: str) -> Plot:
    return Plot(
        name=f"target-{name}",
        title=f"To the target accuracy: {title}",
        caption="Mean over the seeds that reached it; no mark if none did. The target is the next "
        "half percentage point below the worst seed of the base recipe.",
        source="evaluation events: correct, samples; epoch events: train_s",
        frame="targets",
        known=field,
        least=2,
        mark=_by_batch(
            y=Axis(field, title, scale="log"),
            tooltip=(
                *("remedy", "batch_size|batch|,", "epochs||.1f", "updates||,.0f"),
                "to_target_s|time (s)|,.3~f",
            ),
        ),
    )


LARGE_BATCH = Page(
    read=reader(
        of_run,
        counts=lambda row: row.get("has_result", False),
        panel="training",
        # Sort by increasing batch, then as the study lists them.
        finish=lambda rows: sorted(rows, key=lambda row: int(row["batch_size"])),
    ),
    cell=("remedy", "batch_size"),
    baseline=recipe_at_the_smallest,
    quantities=(
        ACCURACY,
        Measure("gap", how=fmean),
        Measure("mean_epoch_s", how=fmean),
        change("accuracy_change", ACCURACY),
        derived("runs", lambda row: len(row["_cell"].rows)),
        derived("diverged", lambda row: sum(run["diverged"] for run in row["_cell"].rows)),
    ),
    frames={"losses": loss_rows, "targets": target_rows},
    headline=headline,
    facts=facts,
    keys=keys,
    claims=(
        Say(
            holding,
            note="Each remedy is compared with itself at the smallest batch, or with the base "
            "recipe there if the optimizer is the same; the first batch that loses accuracy is "
            "named. A batch keeps the accuracy if, paired by seed, the interval of the difference "
            f"lies above \N{MINUS SIGN}{MARGIN * 100:g} points and not entirely below 0, and no "
            "seed diverged.",
        ),
        Say(
            best_remedies,
            note="Best remedy: significantly above every other, paired by seed, among remedies "
            "with no diverged seed.",
        ),
        Say(soonest),
    ),
    leading=(ACCURACY_PLOT, GAP_PLOT),
    leading_title="Accuracy and generalisation gap against batch",
    sections=(
        ChartSection("Training loss, with and without warm-up", (LOSS_PLOT,)),
        ChartSection(
            "To a target accuracy",
            (
                _target_plot("time", "to_target_s", "training time (s)"),
                _target_plot("epochs", "epochs", "epochs"),
                _target_plot("updates", "updates", "updates"),
            ),
        ),
    ),
    tables=(
        TableSpec(
            title="Remedies",
            note="Means over the completed seeds. Against the base: accuracy in percentage points "
            "relative to the same remedy, or else the base recipe, at the smallest batch, paired "
            "by seed. Gap: accuracy of the final model on training data minus that on validation "
            "data, in points.",
            on_terminal=True,
            columns=(
                words("remedy", "remedy", short="remedy"),
                Column("batch", "batch_size", grouped, short="batch"),
                Column("learning rate", "learning_rate", "{:.3g}".format, short="rate"),
                Column("updates per epoch", "updates_per_epoch"),
                Column("accuracy", "accuracy", two_decimals, short="accuracy"),
                Column("worst seed", "accuracy_low", two_decimals, short="worst"),
                Column("best seed", "accuracy_high", two_decimals, short="best"),
                Column("seeds", "runs", short="seeds"),
                Column("diverged", "diverged", short="div."),
                Column("against the base", "accuracy_change", points, short="to base"),
                Column("gap", "gap", points),
                Column("epoch (s)", "mean_epoch_s", fixed),
            ),
        ),
        TableSpec(
            title="To the target accuracy",
            note="Means over the seeds that reached the target; training time only.",
            frame="targets",
            columns=(
                words("remedy", "remedy"),
                Column("batch", "batch_size", grouped),
                Column("seeds that reached it", lambda r: f"{r['num_reached']} of {r['runs']}"),
                Column("epochs", "epochs", "{:.1f}".format),
                Column("updates", "updates", grouped),
                Column("time (s)", "to_target_s", fixed),
            ),
        ),
        RUNS,
    ),
)
