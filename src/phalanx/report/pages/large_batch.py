"""The page of a large-batch study: up to which batch each remedy holds the accuracy."""

from __future__ import annotations

from functools import partial
from statistics import fmean

from phalanx.report import large_batch_rows as rows_of
from phalanx.report.cells import Change, Derived, Measure
from phalanx.report.content import Column, words
from phalanx.report.format import fixed, grouped, points, two_decimals
from phalanx.report.large_batch_rows import HIGHEST_LOSS, MARGIN
from phalanx.report.marks import Axis, Lines
from phalanx.report.training import reader
from phalanx.report.training_page import ACCURACY
from phalanx.report.training_tables import RUNS
from phalanx.report.values import ChartSection, Page, Plot, Say, TableSpec

BATCH = Axis(field="batch_size", title="batch in samples", scale="counts")
TOOLTIP = (
    *("remedy", "batch_size|batch|,", "learning_rate|learning rate|.4~g"),
    *("accuracy||.2%", "accuracy_low|worst seed|.2%", "accuracy_high|best seed|.2%", "gap||.2%"),
    *("runs|seeds", "diverged"),
)
_by_batch = partial(Lines, x=BATCH, series="remedy")
ACCURACY_PLOT = Plot(
    name="accuracy",
    title="Accuracy against batch, by remedy",
    caption="Mean over seeds; the bar runs from the worst seed to the best. Runs that diverged are "
    "in no mean: the table counts them.",
    source="epoch and evaluation events: correct, samples of all ranks",
    known="accuracy",
    least=2,
    mark=_by_batch(
        y=Axis(field="accuracy", title="final validation accuracy", form=".1%"),
        spread=True,
        tooltip=TOOLTIP,
    ),
)
GAP_PLOT = Plot(
    name="gap",
    title="Generalisation gap against batch",
    caption="Accuracy of the final model on training data less that on the validation data; "
    "the bar runs from the smallest to the largest of the seeds.",
    source="training evaluation and evaluation events: correct, samples of all ranks",
    known="gap",
    least=2,
    mark=_by_batch(
        y=Axis(
            field="gap", title="training \N{MINUS SIGN} validation accuracy", form=".1%", zero=True
        ),
        spread=True,
        tooltip=TOOLTIP,
    ),
)
LOSS_PLOT = Plot(
    name="loss",
    title="Training loss by epoch",
    caption="The mean over an epoch while it was trained on; one line per seed. A line that stops "
    f"early has diverged; losses above {HIGHEST_LOSS:g} are drawn there.",
    source="epoch events: loss_sum, samples of all ranks",
    frame="losses",
    mark=Lines(
        x=Axis(field="epoch", title="epoch"),
        y=Axis(field="train_loss", title="training loss", scale="log"),
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
        caption="Mean over the seeds that reached it. Where none did there is no mark. The target "
        "is the next half percentage point below the worst seed of the base recipe.",
        source="evaluation events: correct, samples; epoch events: train_s",
        frame="targets",
        known=field,
        least=2,
        mark=_by_batch(
            y=Axis(field=field, title=title, scale="log"),
            tooltip=(
                *("remedy", "batch_size|batch|,", "epochs||.1f", "updates||,.0f"),
                "to_target_s|time (s)|,.3~f",
            ),
        ),
    )


LARGE_BATCH = Page(
    read=reader(
        rows_of.of_run,
        counts=lambda row: row.get("has_result", False),
        panel="training",
        finish=rows_of.by_batch,
    ),
    cell=("remedy", "batch_size"),
    baseline=rows_of.recipe_at_the_smallest,
    quantities=(
        ACCURACY,
        Measure(column="gap", how=fmean),
        Measure(column="mean_epoch_s", how=fmean),
        Change(column="accuracy_change", measure=ACCURACY),
        Derived("runs", lambda row: len(row["_cell"].rows)),
        Derived("diverged", lambda row: sum(run["diverged"] for run in row["_cell"].rows)),
    ),
    frames={"losses": rows_of.loss_rows, "targets": rows_of.target_rows},
    headline=rows_of.headline,
    facts=rows_of.facts,
    keys=rows_of.keys,
    claims=(
        Say(
            rows_of.holding,
            note="Each remedy is held to itself at the smallest batch, or to the base recipe there "
            "where the optimizer is the same; the first batch that does not hold is named. A "
            "batch holds the accuracy when, seed by seed, the interval of the difference lies "
            f"above \N{MINUS SIGN}{MARGIN * 100:g} points and not wholly below 0, and no seed "
            "diverged.",
        ),
        Say(
            rows_of.best_remedies,
            note="Best remedy: seen to be above every other, seed by seed, of those of which no "
            "seed diverged.",
        ),
        Say(rows_of.soonest),
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
            note="Means over the seeds that came to their end. Against the base: percentage points "
            "of accuracy, to the same remedy, or else the base recipe, at the smallest batch, seed "
            "by seed. Gap: accuracy of the final model on training data less that on the "
            "validation data, in points.",
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
            note="Means over the seeds that reached it, training time only.",
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
