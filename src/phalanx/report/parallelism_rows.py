"""Rows of a parallelism study: bytes, memory, losses and pipelines of schemes. Pure.

Times, losses and accuracies are over all seeds; what is told here is of the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from phalanx.records.divergence import UNBOUNDED, loss_text, mean_loss
from phalanx.report.cells import Cell, CellPanel, Row
from phalanx.report.claims import agreement, changed
from phalanx.report.format import UNKNOWN, amount, percent, signed_percent
from phalanx.report.measures import SCRATCH_MODEL, RunMeasure
from phalanx.report.rank_details import (
    EQUAL_WITHIN,
    FormulaCheck,
    RunDetail,
    losses,
    pipeline_step,
    state,
)
from phalanx.report.rank_measures import RankMeasure
from phalanx.report.schemes import communicates_within, makes_the_same_update, scheme_phrase
from phalanx.report.training import measures_of
from phalanx.report.training_page import ACCURACY, LOSS
from phalanx.report.values import Told, View

MOST_STEPS = 60
MEBIBYTE = 2**20
SAME_LOSS = 1e-3
"""Relative; final losses closer than this are called equal (float32, sums in another order)."""
NEAR_FORMULA = 0.01


def of_run(run: RunMeasure) -> Mapping[str, Any]:
    """Return what a scheme's run has beside that of every training."""
    if run.run is None or run.setting is None:
        return {"is_scratch": False}
    detail = RunDetail(ranks=tuple(run.ranks.values()))
    step_s = detail.step_s
    return {
        "is_scratch": run.setting.model == SCRATCH_MODEL,
        "hidden": str(run.setting.options.get("hidden", "")),
        "step_ms": None if step_s is None else 1e3 * step_s,
        "num_workers": len(detail.of_role("worker")) or run.setting.ranks,
    }


def is_scheme(row: Row) -> bool:
    """Return whether a run is of a scheme on a model of PyTorch."""
    return bool(row["is_timed"]) and not row["is_scratch"]


def scheme_columns(row: Row) -> dict[str, Any]:
    """Return the words for a scheme, and what it waited where that can be told."""
    scheme, ranks = row["strategy"], row["ranks"]
    within = communicates_within(scheme)
    return {
        "label": f"{scheme}, {ranks} ranks" if ranks > 1 else scheme,
        "scheme": scheme_phrase(scheme),
        "bar": f"{scheme} ({ranks})",
        "waiting": None if within else row["communication"],
    }


def finish(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, **scheme_columns(row)} for row in rows]


def detail_of(cell: Row) -> RunDetail:
    """Return the ranks of the first run of a cell."""
    return RunDetail(ranks=tuple(measures_of(cell)[0].ranks.values()))


def head(cell: Row) -> dict[str, Any]:
    names = ("panel", "label", "strategy", "group", "ranks", "_runs")
    return {name: cell[name] for name in names}


def largest(cells: Sequence[Row]) -> list[Row]:
    """Return each scheme's cell with the most ranks, of each panel."""
    best: dict[tuple[str, str], Row] = {}
    for cell in cells:
        key = cell["panel"], cell["strategy"]
        if key not in best or cell["ranks"] > best[key]["ranks"]:
            best[key] = cell
    return list(best.values())


def loss_rows(view: View) -> list[Row]:
    """Return a row for each scheme and drawn step, on its largest number of ranks."""
    return [
        {**head(cell), "step": loss.step + 1, "trained_s": loss.trained_s, "loss": loss.loss}
        for cell in largest(view.frame("cells"))
        for loss in losses(detail_of(cell), most=MOST_STEPS)
    ]


def role_rows(view: View) -> list[Row]:
    """Return a row for each scheme, number of ranks and role: its bytes and memory."""
    rows: list[Row] = []
    for cell in view.frame("cells"):
        detail = detail_of(cell)
        for role in detail.roles:
            ranks = detail.of_role(role)
            bar = f"{cell['bar']}, {role}" if len(detail.roles) > 1 else cell["bar"]
            rows.append({**head(cell), "role": role, "bar": bar, **_costs(detail, ranks)})
    return rows


def _costs(detail: RunDetail, ranks: Sequence[RankMeasure]) -> dict[str, Any]:
    sent = [detail.sent(rank) for rank in ranks]
    most = max((p for p in sent if p.found is not None), key=lambda p: p.found or 0, default=None)
    known = [rank for rank in ranks if rank.memory]
    fullest = max(known, key=lambda rank: state(rank).found or 0.0, default=None)
    kept = state(fullest) if fullest else None
    return {
        "num_ranks": len(ranks),
        "sent_mb": most.found / MEBIBYTE if most and most.found is not None else None,
        "formula_mb": most.formula / MEBIBYTE if most and most.formula is not None else None,
        "words": f"{amount(most.found or 0.0)} {deviation_mark(sent)}" if most else "",
        "formula": _formula(ranks, "traffic_formula"),
        "mark": deviation_mark(sent),
        "state_mb": kept.found / MEBIBYTE if kept and kept.found is not None else None,
        "state_off": kept.difference if kept else None,
        "_sent": sent,
        "_received": [detail.received(rank) for rank in ranks],
        "_states": [state(rank) for rank in ranks],
        "_fullest": fullest,
        "_state": kept,
    }


def _formula(ranks: Sequence[RankMeasure], name: str) -> str:
    return str(next((f for rank in ranks if (f := getattr(rank.expected, name))), ""))


def cost_columns(cell: Row) -> dict[str, Any]:
    """Return the bytes and the memory of all ranks of a cell."""
    detail = detail_of(cell)
    return _costs(detail, detail.ranks)


def memory_rows(view: View) -> list[Row]:
    """Return three rows for each scheme, number of ranks and role, laid end to end: of the rank
    that keeps the most."""
    rows: list[Row] = []
    for line in view.frame("roles"):
        rank, begin = line["_fullest"], 0.0
        if rank is None:
            continue
        kept = line["_state"]
        formula_mb = None if kept.formula is None else kept.formula / MEBIBYTE
        words = f"{amount(kept.found)} {deviation_mark([kept])}"
        for part in ("parameters", "gradients", "optimizer"):
            part_mb = getattr(rank.memory, f"{part}_bytes") / MEBIBYTE
            own = {"part": part, "part_mb": part_mb, "begin_mb": begin, "end_mb": begin + part_mb}
            own |= {"all_mb": kept.found / MEBIBYTE, "formula_mb": formula_mb, "words": words}
            formula = rank.expected.state_formula or ""
            rows.append({**head(line), "bar": line["bar"], **own, "formula": formula})
            begin += part_mb
    return rows


def staleness_rows(view: View) -> list[Row]:
    """Return a row for each number of updates that came between reading and writing."""
    rows: list[Row] = []
    for cell in view.frame("cells"):
        counts = detail_of(cell).staleness
        if not makes_the_same_update(cell["strategy"]) and counts:
            total = sum(counts.values())
            rows += [
                {**head(cell), "staleness": n, "updates": counts[n], "share": counts[n] / total}
                for n in range(max(counts) + 1)
            ]
    return rows


def bubble_of(cell: Row) -> tuple[float | None, float | None]:
    """Return the idle share of the drawn step of a pipeline: measured, and by formula."""
    detail = detail_of(cell)
    step = pipeline_step(detail)
    formulas = [rank.expected.bubble for rank in detail.ranks]
    return step.bubble if step else None, next((f for f in formulas if f is not None), None)


def action_rows(view: View) -> list[Row]:
    """Return a row for each piece of a pipeline's step as it happened, a bar for each stage."""
    rows: list[Row] = []
    for cell in largest(view.frame("cells")):
        step = pipeline_step(detail_of(cell))
        if step is None:
            continue
        shares = zip(("bubble", "formula"), bubble_of(cell), strict=True)
        words = ", ".join(
            f"{what} {percent(share, 0)}" for what, share in shares if share is not None
        )
        actions = [(place, action) for place, own in step.actions.items() for action in own]
        for place, action in sorted(actions, key=lambda pair: pair[1].stage):
            rows.append(
                {
                    **head(cell),
                    "pipeline": f"{cell['label']}: {words}",
                    "row": f"stage {action.stage} (rank {step.ranks[place]})",
                    "stage": action.stage,
                    "rank": step.ranks[place],
                    "micro_batch": action.micro_batch,
                    "kind": action.kind,
                    "begin_ms": (action.began_s - step.began_s) * 1e3,
                    "end_ms": (action.ended_s - step.began_s) * 1e3,
                }
            )
    return rows


def pipeline_rows(view: View) -> list[Row]:
    """Return a row for each cell that has recorded a pipeline's step."""
    rows: list[Row] = []
    for cell in view.frame("cells"):
        if step := pipeline_step(detail_of(cell)):
            measured, formula = bubble_of(cell)
            own = {"num_micro_batches": len(step.micro_batches), "bubble": measured}
            rows.append({**cell, **own, "bubble_formula": formula})
    return rows


def left_out_rows(view: View) -> list[Row]:
    left_out = view.data.study.left_out.items()
    return [{"panel": "", "run": run, "error": error} for run, error in left_out]


def deviation_mark(checks: Sequence[FormulaCheck]) -> str:
    """Return `=` if every rank's value equals its formula, else the largest deviation."""
    known = [check.difference for check in checks if check.difference is not None]
    if not known:
        return ""
    if all(check.is_equal for check in checks if check.difference is not None):
        return "="
    worst = max(known, key=abs)
    if worst == float("inf"):
        return "\N{NOT EQUAL TO} 0"
    return f"\N{NOT EQUAL TO} ({worst * 100:+.3g} %)".replace("-", "\N{MINUS SIGN}")


def range_of(checks: Sequence[FormulaCheck], name: str) -> str | None:
    """Return the bytes of ranks from the fewest to the most; None where nothing is known."""
    known = [value for check in checks if (value := getattr(check, name)) is not None]
    if not known:
        return None
    low, high = amount(min(known)), amount(max(known))
    return low if low == high else f"{low} {UNKNOWN} {high}"


# -- Claims ----------------------------------------------------------------------------------------


def _agreement(holds: str, known: Sequence[str], exceptions: Sequence[str], label: str) -> Told:
    return replace(agreement(len(known), holds, exceptions, "configurations"), label=label)


def least_memory(view: View) -> Iterator[Told]:
    """Yield the scheme with the least training state on its fullest rank, on the most ranks."""
    for label, rows in view.by_panel.items():
        ranks = max((row["ranks"] for row in rows), default=0)
        kept = [r for r in rows if r["ranks"] == ranks > 1 and r["state_mb"] is not None]
        if len(kept) < 2:
            continue
        cell = min(kept, key=lambda row: float(row["state_mb"]))
        text = f"{cell['phrase']} keeps the least, {amount(cell['state_mb'] * MEBIBYTE)} a rank"
        alone = [r["state_mb"] for r in rows if r["strategy"] == "sequential" and r["state_mb"]]
        if alone:
            share = percent(cell["state_mb"] / alone[0], 0)
            text += f" against {amount(alone[0] * MEBIBYTE)} of one process ({share})"
        formula = _formula(detail_of(cell).ranks, "state_formula")
        yield Told(text=f"{text}, by the formula {formula}" if formula else text, label=label)


def formulas_hold(view: View) -> Iterator[Told]:
    """Yield for how many configurations bytes and memory are those of their formulas."""
    for label, rows in view.by_panel.items():
        sent: dict[str, list[FormulaCheck]] = {}
        off: dict[str, float] = {}
        for row in rows:
            if known := [check for check in row["_sent"] if check.difference is not None]:
                sent[row["label"]] = known
            if offs := [c.difference for c in row["_states"] if c.difference is not None]:
                off[row["label"]] = max(offs, key=abs)
        if sent:
            wrong = [name for name, own in sent.items() if not all(c.is_equal for c in own)]
            marks = [f"{name} {deviation_mark(sent[name])}" for name in wrong]
            holds = "send the bytes of their formula on every rank"
            yield _agreement(holds, list(sent), marks, label)
        if off:
            far = [f"{n} ({signed_percent(o)})" for n, o in off.items() if abs(o) > NEAR_FORMULA]
            yield _agreement("keep the memory of their formula", list(off), far, label)


def _alone(panel: CellPanel) -> Cell | None:
    return next((cell for cell in panel.cells if cell["strategy"] == "sequential"), None)


def losses_agree(view: View) -> Iterator[Told]:
    """Yield how many schemes that make the sequential program's update end with its loss."""
    for panel in view.panels:
        alone = _alone(panel)
        offs = {
            cell["label"]: max(abs(own / other - 1) for own, other in pairs)
            for cell in panel.cells
            if alone and cell is not alone and makes_the_same_update(cell["strategy"])
            if (pairs := LOSS.pairs(cell, alone))
        }
        if alone and offs:
            loss = fmean(alone.by_seed("loss").values())
            holds = "that make the sequential update end with its validation loss, "
            holds += f"{loss:.4f}, to {percent(SAME_LOSS, 1)} with every seed"
            far = [f"{n} ({off * 100:.2g} %)" for n, off in offs.items() if off > SAME_LOSS]
            yield _agreement(holds, list(offs), far, panel.label)


def drift(view: View) -> Iterator[Told]:
    """Yield the accuracy of schemes that do not make the same update, on the most ranks."""
    for panel in view.panels:
        alone, ranks = _alone(panel), max((cell["ranks"] for cell in panel.cells), default=0)
        for cell in panel.cells:
            pairs = LOSS.pairs(cell, alone) if alone else []
            is_drifting = not makes_the_same_update(cell["strategy"])
            if alone and pairs and is_drifting and cell["ranks"] == ranks:
                mean = mean_loss(sum(own for own, _ in pairs), len(pairs))
                change = "diverged"
                if mean < UNBOUNDED:
                    change = signed_percent(fmean(own / base - 1 for own, base in pairs))
                told = changed(ACCURACY, cell, alone, (cell["phrase"], "the sequential program"))
                text = f"{told.text}; loss {loss_text(mean)}, {change}"
                yield replace(told, text=text, label=panel.label)


EQUAL = percent(EQUAL_WITHIN, 1)
