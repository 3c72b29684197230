"""Runs of trainings as tidy rows: every option and every measure a column.

Runs are taken together only where they differ in nothing but the seed. What is trained tells panels
apart (the workload), and how it is split tells cells apart (the layout).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phalanx.records.schema import Run, Setting
from phalanx.report.cells import Row
from phalanx.report.folder import StudyMeasures, read_folder
from phalanx.report.format import capitals, counted
from phalanx.report.measures import RunMeasure
from phalanx.report.schemes import (
    MODEL_SIZES,
    group_of,
    layout_options,
    named_with_options,
    scheme_of,
    scheme_phrase,
    varying_options,
    workload_options,
)
from phalanx.report.values import StudyRows

TIMES_SIGN = "\N{MULTIPLICATION SIGN}"
WORKLOAD_WORDS = {
    "sizes": "{}",
    "dataset": "{}",
    "epochs": "{} epochs",
    "optimizer": "{}",
    "learning_rate": "lr {:g}",
    "dtype": "{}",
}
Extra = Callable[[RunMeasure], Mapping[str, Any]]
"""Columns that a kind of study adds to those of every run."""


def reader(extra: Extra = lambda _: {}, **how: Any) -> Callable[[Path], StudyRows]:
    """Return a reader of a study, a run, or a folder of runs, whose rows have further columns.

    It raises UserError when the records cannot be read. how: as `training_rows` takes it.
    """
    return lambda folder: training_rows(read_folder(folder), extra, **how)


def training_rows(
    measures: StudyMeasures,
    extra: Extra = lambda _: {},
    *,
    counts: Callable[[Row], bool] = lambda row: row["is_timed"],
    panel: str = "workload",
    finish: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda rows: rows,
    tells_left_out: bool = False,
) -> StudyRows:
    """Return the runs of a study as rows.

    counts: whether a row forms a cell. panel: column of the panels' labels. finish: what is known
    from all rows together, and their order. tells_left_out: among the conditions.
    """
    labels = workload_labels([run.run for run in measures.runs if run.run])
    runs = [{**run_row(run, labels), **extra(run)} for run in measures.runs]
    runs = [{**row, "panel": row.get(panel)} for row in runs]
    _mark_main(runs, counts)
    sizes = [row["batch_size"] for row in runs if row.get("batch_size")]
    for row in runs:
        row["smallest"] = min(sizes, default=0)
    rows = finish([row for row in runs if row["panel"] is not None and counts(row)])
    left_out = measures.study.left_out if tells_left_out else {}
    return StudyRows(
        study=measures.study,
        folder=measures.folder,
        runs=runs,
        rows=rows,
        environments=[run.run.environment for run in measures.runs if run.run],
        measures=measures.runs,
        notes=[("", f"Left out: {what}: {why}") for what, why in left_out.items()],
    )


def run_row(measure: RunMeasure, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the row of a run; of one without records its name and status.

    labels: of workloads, by the names of runs.
    """
    row = {
        "run": measure.name,
        "status": measure.status,
        "error": measure.error or "",
        "is_timed": measure.status == "completed" and measure.epoch_s is not None,
        "main": True,
        "shown": True,
        "_measure": measure,
    }
    return {**row, **_measured(measure)} | (
        {"workload": labels[measure.run.run], **layout_columns(measure.run)} if measure.run else {}
    )


def _measured(measure: RunMeasure) -> dict[str, Any]:
    started = [rank.started.startup_s for rank in measure.ranks.values() if rank.started]
    user_s, system_s = measure.processor_s or (None, None)
    last = measure.trained[-1] if measure.trained else None
    return {
        "epoch_s": measure.timed_s,
        "epochs_s": tuple(epoch.epoch_s for epoch in measure.trained),
        "samples": last.samples if last else None,
        "rate": measure.images_per_s,
        "user_s": user_s,
        "system_s": system_s,
        "communication": measure.communication_share,
        "loss": last.validation_loss if last else None,
        "train_loss": last.train_loss if last else None,
        "accuracy": measure.final_accuracy,
        "startup_s": max(started, default=None),
        **{
            f"link_{name}": v
            for name, v in (asdict(measure.links) if measure.links else {}).items()
        },
    }


def layout_columns(run: Run) -> dict[str, Any]:
    """Return how the work of a run is split, with the words for it."""
    setting = run.setting
    per_rank = run.config.get("per_rank_batch_size")
    # One rank's batch is the global batch, so sequential runs serve both kinds as reference.
    own = isinstance(per_rank, int) and setting.ranks > 1
    batch = int(str(per_rank)) if own else setting.global_batch_size
    strategy = named_with_options(scheme_of(setting), setting)
    ranks, threads = setting.ranks, setting.threads
    span = counted(ranks, "rank")
    span += f" {TIMES_SIGN} {counted(threads, 'thread')}" if threads > 1 else ""
    span += f" over {setting.nodes} nodes" if setting.nodes > 1 else ""
    alone, with_threads = strategy == "sequential", counted(threads, "thread")
    layout = (strategy, ranks, threads, batch, own, layout_options(run))
    return {
        "model": setting.model,
        "dataset": setting.dataset,
        "seed": setting.seed,
        "strategy": strategy,
        "group": group_of(strategy),
        "ranks": ranks,
        "threads": threads,
        "workers": ranks * threads,
        "width": f"{ranks}" if threads == 1 else f"{ranks}{TIMES_SIGN}{threads}",
        "nodes": setting.nodes,
        "batch_size": batch,
        "batch": f"{batch} per rank" if own else f"{batch}",
        "span": span,
        "configuration": f"sequential, {with_threads}" if alone else f"{strategy}, {span}",
        "phrase": f"sequential with {with_threads}"
        if alone
        else f"{scheme_phrase(strategy)} on {span}",
        # Lines join what differs in the number of workers only.
        "line": strategy if alone else f"{strategy}, {threads} per rank",
        "cores": run.environment.cores,
        "optimizer": setting.optimizer,
        "learning_rate": setting.learning_rate,
        "on_one_node": layout,
        "cell": (*layout, setting.nodes),
    }


def workload_of(run: Run) -> dict[str, Any]:
    """Return what is trained: all that decides but the seed and the layout."""
    setting, given = run.setting, run.config.get("lr")
    return {
        "model": setting.model,
        "sizes": _sizes(setting),
        "dataset": setting.dataset,
        "epochs": setting.epochs,
        "optimizer": setting.optimizer,
        # Value before the learning-rate rule.
        "learning_rate": float(given) if isinstance(given, int | float) else setting.learning_rate,
        "dtype": setting.dtype,
        "others": workload_options(run),
    }


def workload_labels(runs: Iterable[Run]) -> dict[str, str]:
    """Return a label for each run's workload: the model, and what tells it from others of that
    model."""
    found = {run.run: workload_of(run) for run in runs}
    labels = {}
    for name, own in found.items():
        same_model = [other for other in found.values() if other["model"] == own["model"]]
        differing = [
            words.format(own[column])
            for column, words in WORKLOAD_WORDS.items()
            if own[column] and any(other[column] != own[column] for other in same_model)
        ]
        others = varying_options(own["others"], [other["others"] for other in same_model])
        labels[name] = capitals(" · ".join([own["model"], *differing, *others]))
    return labels


def _sizes(setting: Setting) -> str:
    return ", ".join(
        f"{name} {setting.options[name]}" for name in MODEL_SIZES if name in setting.options
    )


def _mark_main(rows: Sequence[dict[str, Any]], counts: Callable[[Row], bool]) -> None:
    """Mark the rows at the batch size that most cells of a panel have (the smallest of these), and
    of them those on the fewest nodes: scaling is drawn of these."""
    for label in {row["panel"] for row in rows}:
        own = [row for row in rows if row["panel"] == label and "cell" in row]
        sizes = [
            row["batch_size"] for row in {row["cell"]: row for row in own if counts(row)}.values()
        ]
        if not sizes:
            continue
        main = min(sizes, key=lambda size: (-sizes.count(size), size))
        fewest: dict[object, int] = {}
        for row in own:
            nodes = fewest.get(row["on_one_node"], row["nodes"])
            fewest[row["on_one_node"]] = min(row["nodes"], nodes)
        for row in own:
            row["main"] = row["batch_size"] == main
            row["shown"] = row["main"] and row["nodes"] == fewest[row["on_one_node"]]


def measures_of(cell_row: Row) -> list[RunMeasure]:
    """Return the runs behind the row of a cell."""
    return [row["_measure"] for row in cell_row["_cell"].rows]
