"""Rows and claims of a parallelism study: bytes, memory, losses and pipelines of schemes. Pure.

Bytes and memory stand beside their formulas. Times, losses and accuracies are over all seeds; what
is told here is of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from phalanx.records.divergence import UNBOUNDED, loss_text, mean_loss
from phalanx.records.events import ActionEvent
from phalanx.report.cells import Cell, CellPanel, Row, best_by
from phalanx.report.claims import agreement, changed
from phalanx.report.format import UNKNOWN, amount, percent, signed_percent
from phalanx.report.measures import SCRATCH_MODEL, RunMeasure
from phalanx.report.rank_measures import RankMeasure, step_times
from phalanx.report.schemes import makes_the_same_update, scheme_phrase
from phalanx.report.training import measures_of
from phalanx.report.training_page import ACCURACY, LOSS
from phalanx.report.values import Told, View

Actions = dict[int, list[ActionEvent]]
"""Actions of one step, by rank of the run, in the order of the pipeline."""


def drawn_step(ranks: Iterable[RankMeasure]) -> list[Row]:
    """Return the actions of the shortest step that the first pipeline of a run has recorded, the
    least disturbed, a row each; the run's first step is left out as warm-up where there are
    others."""
    steps = recorded_steps(_first_pipeline(ranks))
    later = [actions for step, actions in steps.items() if step > 0] or list(steps.values())
    if not later:
        return []
    chosen = min(later, key=lambda actions: _end(actions) - _begin(actions))
    begin_s = _begin(chosen)
    return [
        {
            "rank": rank,
            "stage": action.stage,
            "micro_batch": action.micro_batch,
            "kind": action.kind,
            "begin_ms": (action.began_s - begin_s) * 1e3,
            "end_ms": (action.ended_s - begin_s) * 1e3,
        }
        for rank, actions in chosen.items()
        for action in sorted(actions, key=lambda action: action.began_s)
    ]


def recorded_steps(ranks: Sequence[RankMeasure]) -> dict[int, Actions]:
    """Return the steps that all these ranks have recorded."""
    steps: dict[int, Actions] = {}
    for rank in ranks:
        for action in rank.actions:
            steps.setdefault(action.step, {}).setdefault(rank.rank, []).append(action)
    return {step: steps[step] for step in sorted(steps) if len(steps[step]) == len(ranks)}


def bubble(step: Sequence[Row]) -> float | None:
    """Return the share of a step in which a rank was at no action, mean over the ranks."""
    if not step:
        return None
    busy_ms = sum(float(row["end_ms"] - row["begin_ms"]) for row in step)
    num_ranks, length_ms = (
        len({row["rank"] for row in step}),
        max(float(row["end_ms"]) for row in step),
    )
    return max(0.0, 1 - busy_ms / (num_ranks * length_ms))


def _begin(actions: Actions) -> float:
    return min(action.began_s for own in actions.values() for action in own)


def _end(actions: Actions) -> float:
    return max(action.ended_s for own in actions.values() for action in own)


def _first_pipeline(ranks: Iterable[RankMeasure]) -> list[RankMeasure]:
    """The ranks with actions that differ from the first of them in their place along the pipeline
    alone, in the order of these places."""

    def outside(rank: RankMeasure) -> dict[str, int]:
        return {axis: place for axis, place in rank.coordinates.items() if axis != "pp"}

    acting = [rank for rank in ranks if rank.actions]
    first = [rank for rank in acting if outside(rank) == outside(acting[0])]
    return sorted(first, key=lambda rank: (rank.coordinates.get("pp", rank.rank), rank.rank))


# -- Bytes and memory of ranks, beside their formulas ----------------------------------------------


EQUAL_WITHIN = 1e-3
"""Counted bytes this close to the formula are called equal: a broadcast at the end of an epoch, or
a smaller last batch, is in the count and not in the formula."""
MEBIBYTE = 2**20


class FormulaCheck(NamedTuple):
    """A counted or measured value, and that of the formula; None where unknown."""

    found: float | None
    formula: float | None

    @property
    def difference(self) -> float | None:
        """Relative, of what was found from the formula."""
        if self.found is None or self.formula is None:
            return None
        if not self.formula:
            return 0.0 if not self.found else float("inf")
        return self.found / self.formula - 1

    @property
    def is_equal(self) -> bool | None:
        return None if self.difference is None else abs(self.difference) <= EQUAL_WITHIN

    @property
    def found_mb(self) -> float | None:
        return None if self.found is None else self.found / MEBIBYTE

    @property
    def formula_mb(self) -> float | None:
        return None if self.formula is None else self.formula / MEBIBYTE


NOTHING = FormulaCheck(None, None)


def num_steps(run: RunMeasure) -> int:
    """Return the updates of the workers' finished epochs."""
    return max((rank.num_steps for rank in run.ranks.values()), default=0)


def roles(run: RunMeasure) -> dict[str, list[RankMeasure]]:
    """Return the ranks of each role: workers, servers."""
    found: dict[str, list[RankMeasure]] = {}
    for rank in run.ranks.values():
        found.setdefault(rank.role, []).append(rank)
    return found


def a_step(counted: int | None, formula: float | None, steps: int) -> FormulaCheck:
    """Return bytes per step beside the formula."""
    return FormulaCheck(None if counted is None or not steps else counted / steps, formula)


def sent(run: RunMeasure, rank: RankMeasure) -> FormulaCheck:
    return a_step(rank.sent_bytes, rank.expected.sent_bytes, num_steps(run))


def state(rank: RankMeasure) -> FormulaCheck:
    """Return measured and expected bytes of parameters, gradients and optimizer state."""
    memory, found = rank.memory, None
    if memory is not None:
        found = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    return FormulaCheck(found, rank.expected.state_bytes)


def costs(run: RunMeasure, ranks: Sequence[RankMeasure]) -> dict[str, Any]:
    """Return the columns of bytes and memory of some ranks: of the one that sends the most, and of
    the one that keeps the most."""
    checks, steps = [sent(run, rank) for rank in ranks], num_steps(run)
    most = max((c for c in checks if c.found is not None), key=lambda c: c.found or 0, default=None)
    known = [rank for rank in ranks if rank.memory]
    fullest = max(known, key=lambda rank: state(rank).found or 0.0, default=None)
    kept, busiest = state(fullest) if fullest else NOTHING, most or NOTHING
    formulas = (rank.expected.traffic_formula for rank in ranks)
    return {
        "num_ranks": len(ranks),
        "sent_mb": busiest.found_mb,
        "formula_mb": busiest.formula_mb,
        "words": f"{amount(most.found or 0.0)} {deviation_mark(checks)}" if most else "",
        "formula": next(filter(None, formulas), ""),
        "mark": deviation_mark(checks),
        "state_mb": kept.found_mb,
        "state_off": kept.difference,
        "_sent": checks,
        "_received": [
            a_step(rank.received_bytes, rank.expected.received_bytes, steps) for rank in ranks
        ],
        "_states": [state(rank) for rank in ranks],
        "_fullest": fullest,
        "_state": kept,
    }


def deviation_mark(checks: Sequence[FormulaCheck]) -> str:
    """Return `=` if every rank's value equals its formula, else the largest deviation."""
    known = [check for check in checks if check.difference is not None]
    if not known:
        return ""
    if all(check.is_equal for check in known):
        return "="
    worst = max((check.difference or 0.0 for check in known), key=abs)
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


# -- Rows ------------------------------------------------------------------------------------------


MOST_STEPS = 60
SAME_LOSS = 1e-3
"""Relative; final losses closer than this are called equal (float32, sums in another order)."""
NEAR_FORMULA = 0.01
EQUAL = percent(EQUAL_WITHIN, 1)


def of_run(run: RunMeasure) -> Mapping[str, Any]:
    """Return what a scheme's run has beside that of every training."""
    if run.setting is None:
        return {"is_scratch": False}
    times_s = step_times(rank.steps for rank in run.ranks.values())
    return {
        "is_scratch": run.setting.model == SCRATCH_MODEL,
        "hidden": str(run.setting.options.get("hidden", "")),
        # Exclude warm-up: the share of the first epoch.
        "step_ms": 1e3 * median(times_s[len(times_s) // 3 :]) if times_s else None,
        "num_workers": len(roles(run).get("worker", ())) or run.setting.ranks,
    }


def is_scheme(row: Row) -> bool:
    """Return whether a run is of a scheme on a model of PyTorch."""
    return bool(row["is_timed"]) and not row["is_scratch"]


def scheme_columns(row: Row) -> dict[str, Any]:
    """Return the words for a scheme, and what it waited where that is timed as such."""
    scheme, ranks = row["strategy"], row["ranks"]
    return {
        "label": f"{scheme}, {ranks} ranks" if ranks > 1 else scheme,
        "scheme": scheme_phrase(scheme),
        "bar": f"{scheme} ({ranks})",
        "waiting": row["communication"],
    }


def finish(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, **scheme_columns(row)} for row in rows]


def run_of(cell: Row) -> RunMeasure:
    """Return the first run of a cell."""
    return measures_of(cell)[0]


def cost_columns(cell: Row) -> dict[str, Any]:
    """Return the bytes and the memory of all ranks of a cell."""
    run = run_of(cell)
    return costs(run, list(run.ranks.values()))


def head(cell: Row) -> dict[str, Any]:
    names = ("panel", "label", "strategy", "group", "ranks", "_runs")
    return {name: cell[name] for name in names}


def largest(cells: Sequence[Row]) -> list[Row]:
    """Return each scheme's cell with the most ranks, of each panel."""
    return list(best_by(cells, ("panel", "strategy"), lambda cell: int(cell["ranks"])).values())


def loss_rows(view: View) -> list[Row]:
    """Return a row for each scheme and drawn step, on its largest number of ranks."""
    return [
        {**head(cell), **point}
        for cell in largest(view.frame("cells"))
        for point in losses(list(run_of(cell).ranks.values()), most=MOST_STEPS)
    ]


def losses(ranks: Sequence[RankMeasure], *, most: int) -> list[Row]:
    """Return the mean loss of a target at each step over all ranks, at most `most` of them:
    neighbouring steps are averaged where there are more."""
    per_target = max((rank.targets_per_sample for rank in ranks), default=1)
    tables = [steps for rank in ranks if len(steps := rank.steps)]
    times_s = step_times(tables)
    loss, samples = (
        np.sum([steps[name][: len(times_s)] for steps in tables], axis=0)
        for name in ("loss_sum", "samples")
    )
    found = [
        (int(tables[0]["step"][n]) + 1, trained_s, float(loss[n] / samples[n]) / per_target)
        for n, trained_s in enumerate(accumulate(times_s))
        if samples[n]
    ]
    width = -(-len(found) // most) or 1
    pieces = [found[i : i + width] for i in range(0, len(found), width)]
    return [
        {"step": p[-1][0], "trained_s": p[-1][1], "loss": fmean(loss for *_, loss in p)}
        for p in pieces
    ]


def role_rows(view: View) -> list[Row]:
    """Return a row for each scheme, number of ranks and role: its bytes and memory."""
    rows: list[Row] = []
    for cell in view.frame("cells"):
        found = roles(run_of(cell))
        for role, ranks in found.items():
            bar = f"{cell['bar']}, {role}" if len(found) > 1 else cell["bar"]
            rows.append({**head(cell), "role": role, "bar": bar, **costs(run_of(cell), ranks)})
    return rows


def memory_rows(view: View) -> list[Row]:
    """Return three rows for each scheme, number of ranks and role, laid end to end: of the rank
    that keeps the most."""
    rows: list[Row] = []
    for line in (line for line in view.frame("roles") if line["_fullest"]):
        rank, kept, begin = line["_fullest"], line["_state"], 0.0
        words = f"{amount(kept.found)} {deviation_mark([kept])}"
        whole = {"all_mb": kept.found_mb, "formula_mb": kept.formula_mb, "words": words}
        whole["formula"] = rank.expected.state_formula or ""
        for part in ("parameters", "gradients", "optimizer"):
            part_mb = getattr(rank.memory, f"{part}_bytes") / MEBIBYTE
            own = {"part": part, "part_mb": part_mb, "begin_mb": begin, "end_mb": begin + part_mb}
            rows.append({**head(line), "bar": line["bar"], **own, **whole})
            begin += part_mb
    return rows


def staleness_rows(view: View) -> list[Row]:
    """Return a row for each number of updates that came between reading and writing."""
    rows: list[Row] = []
    for cell in view.frame("cells"):
        counts: dict[int, int] = {}
        for rank in run_of(cell).ranks.values():
            for n, updates in rank.staleness.items():
                counts[n] = counts.get(n, 0) + updates
        if counts and not makes_the_same_update(cell["strategy"]):
            total = sum(counts.values())
            known = [(n, counts.get(n, 0)) for n in range(max(counts) + 1)]
            rows += [
                {**head(cell), "staleness": n, "updates": updates, "share": updates / total}
                for n, updates in known
            ]
    return rows


def bubble_formula(cell: Row) -> float | None:
    formulas = (rank.expected.bubble for rank in run_of(cell).ranks.values())
    return next((formula for formula in formulas if formula is not None), None)


def action_rows(view: View) -> list[Row]:
    """Return a row for each piece of a pipeline's step as it happened, a bar for each stage."""
    rows: list[Row] = []
    for cell in largest(view.frame("cells")):
        step = drawn_step(run_of(cell).ranks.values())
        shares = {"bubble": bubble(step), "formula": bubble_formula(cell)}
        words = ", ".join(f"{what} {percent(s, 0)}" for what, s in shares.items() if s is not None)
        for action in sorted(step, key=lambda action: int(action["stage"])):
            bar = f"stage {action['stage']} (rank {action['rank']})"
            rows.append(
                {**head(cell), "pipeline": f"{cell['label']}: {words}", "row": bar, **action}
            )
    return rows


def pipeline_rows(view: View) -> list[Row]:
    """Return a row for each cell that has recorded a pipeline's step."""
    found = [(cell, drawn_step(run_of(cell).ranks.values())) for cell in view.frame("cells")]
    return [
        {
            **cell,
            "num_micro_batches": len({action["micro_batch"] for action in step}),
            "bubble": bubble(step),
            "bubble_formula": bubble_formula(cell),
        }
        for cell, step in found
        if step
    ]


def left_out_rows(view: View) -> list[Row]:
    left_out = view.data.study.left_out.items()
    return [{"panel": "", "run": run, "error": error} for run, error in left_out]


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
        text = (
            f"{cell['phrase']} needs the least memory, {amount(cell['state_mb'] * MEBIBYTE)} per "
            "rank"
        )
        alone = [r["state_mb"] for r in rows if r["strategy"] == "sequential" and r["state_mb"]]
        if alone:
            share = percent(cell["state_mb"] / alone[0], 0)
            text += f" against {amount(alone[0] * MEBIBYTE)} of one process ({share})"
        formulas = (rank.expected.state_formula for rank in run_of(cell).ranks.values())
        if formula := next(filter(None, formulas), ""):
            text += f", by the formula {formula}"
        yield Told(text, label=label)


def formulas_hold(view: View) -> Iterator[Told]:
    """Yield for how many configurations bytes and memory are those of their formulas."""
    for label, rows in view.by_panel.items():
        sent = {
            row["label"]: known
            for row in rows
            if (known := [check for check in row["_sent"] if check.difference is not None])
        }
        off = {
            row["label"]: max(known, key=abs)
            for row in rows
            if (known := [c.difference for c in row["_states"] if c.difference is not None])
        }
        if sent:
            wrong = [name for name, own in sent.items() if not all(c.is_equal for c in own)]
            marks = [f"{name} {deviation_mark(sent[name])}" for name in wrong]
            holds = "send as many bytes as their formula on every rank"
            yield _agreement(holds, list(sent), marks, label)
        if off:
            far = [f"{n} ({signed_percent(o)})" for n, o in off.items() if abs(o) > NEAR_FORMULA]
            yield _agreement("need as much memory as their formula", list(off), far, label)


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
            holds = "with the sequential update end with its validation loss, "
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
