"""The rows behind the charts of a parallelism study: what is saved as CSV. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phalanx.report.charts.figure import Row, Value
from phalanx.report.format import amount, percent
from phalanx.report.parallelism.rank_details import (
    FormulaCheck,
    losses,
    pipeline_step,
    state,
)
from phalanx.report.parallelism.study_data import ParallelCell, waiting_share
from phalanx.report.rank_measures import RankMeasure
from phalanx.report.schemes import group_of

MOST_STEPS = 60
MEBIBYTE = 2**20


def head(cell: ParallelCell) -> dict[str, Value]:
    group = group_of(cell.scheme)
    return {
        "configuration": cell.label,
        "strategy": cell.scheme,
        "group": group.title if group else "sequential",
        "ranks": cell.ranks,
    }


@dataclass(frozen=True, kw_only=True)
class Line:
    """A bar or a row of a table: a cell, or the ranks of one role of it."""

    cell: ParallelCell
    role: str = ""
    model: str = ""

    @property
    def bar(self) -> str:
        """The scheme, its ranks, and where there are several roles which."""
        name = f"{self.cell.scheme} ({self.cell.ranks})"
        return f"{name}, {self.role}" if self.role and len(self.cell.detail.roles) > 1 else name

    @property
    def ranks(self) -> list[RankMeasure]:
        detail = self.cell.detail
        return detail.of_role(self.role) if self.role else list(detail.ranks)

    @property
    def sent(self) -> list[FormulaCheck]:
        return [self.cell.detail.sent(rank) for rank in self.ranks]

    @property
    def received(self) -> list[FormulaCheck]:
        return [self.cell.detail.received(rank) for rank in self.ranks]

    @property
    def most_sent(self) -> FormulaCheck | None:
        """Bytes of the rank that sends the most; None where nobody counted."""
        known = [pair for pair in self.sent if pair.found is not None]
        return max(known, key=lambda pair: pair.found or 0.0, default=None)

    @property
    def fullest(self) -> RankMeasure | None:
        """The rank that keeps the most for training; it stands for all."""
        known = [rank for rank in self.ranks if rank.memory]
        return max(known, key=lambda rank: state(rank).found or 0.0, default=None)

    @property
    def state(self) -> FormulaCheck | None:
        return state(self.fullest) if self.fullest else None

    def formula(self, name: str) -> str:
        return str(next((f for rank in self.ranks if (f := getattr(rank.expected, name))), ""))


def by_role(cells: Iterable[ParallelCell], model: str = "") -> list[Line]:
    """Return a line for each role of each cell."""
    return [Line(cell=cell, role=role, model=model) for cell in cells for role in cell.detail.roles]


def time_rows(cells: Iterable[ParallelCell]) -> list[Row]:
    """A row for each scheme and number of ranks."""
    rows: list[Row] = []
    for cell in cells:
        step_s = cell.detail.step_s
        rows.append(
            {
                **head(cell),
                "epoch_s": cell.cell.epoch_s,
                "step_ms": None if step_s is None else step_s * 1e3,
                "speed_up": cell.cell.speed_up,
                "efficiency": cell.cell.efficiency,
                "waiting": waiting_share(cell),
                "loss": cell.cell.loss.mean if cell.cell.loss else None,
                "accuracy": cell.cell.accuracy.mean if cell.cell.accuracy else None,
            }
        )
    return rows


def loss_rows(cells: Iterable[ParallelCell]) -> list[Row]:
    """A row for each scheme and drawn step."""
    return [
        {
            **head(cell),
            "step": loss.step + 1,
            "trained_s": loss.trained_s,
            "loss": loss.loss,
        }
        for cell in cells
        for loss in losses(cell.detail, most=MOST_STEPS)
    ]


def byte_rows(cells: Iterable[ParallelCell]) -> list[Row]:
    """Bytes that the busiest rank sends in a step, a row for each scheme, number of ranks and
    role."""
    return [
        {
            **head(line.cell),
            "bar": line.bar,
            "sent_mb": (sent.found or 0.0) / MEBIBYTE,
            "formula_mb": None if sent.formula is None else sent.formula / MEBIBYTE,
            "words": f"{amount(sent.found or 0.0)} {deviation_mark(line.sent)}",
            "formula": line.formula("traffic_formula"),
        }
        for line in by_role(cells)
        if line.cell.scheme != "sequential" and (sent := line.most_sent)
    ]


def memory_rows(cells: Iterable[ParallelCell]) -> list[Row]:
    """Three rows for each scheme, number of ranks and role, laid end to end: of the rank that keeps
    the most."""
    rows: list[Row] = []
    for line in by_role(cells):
        rank = line.fullest
        if rank is None or rank.memory is None:
            continue
        pair, begin = state(rank), 0.0
        for part in ("parameters", "gradients", "optimizer"):
            part_mb = getattr(rank.memory, f"{part}_bytes") / MEBIBYTE
            rows.append(
                {
                    **head(line.cell),
                    "bar": line.bar,
                    "part": part,
                    "part_mb": part_mb,
                    "begin_mb": begin,
                    "end_mb": begin + part_mb,
                    "all_mb": (pair.found or 0.0) / MEBIBYTE,
                    "formula_mb": None if pair.formula is None else pair.formula / MEBIBYTE,
                    "words": f"{amount(pair.found or 0.0)} {deviation_mark([pair])}",
                    "formula": rank.expected.state_formula or "",
                }
            )
            begin += part_mb
    return rows


def waiting_rows(cells: Iterable[ParallelCell]) -> list[Row]:
    return [
        {
            **head(cell),
            "bar": Line(cell=cell).bar,
            "waiting": waiting_share(cell),
            "words": percent(share, 0),
        }
        for cell in cells
        if cell.scheme != "sequential" and (share := waiting_share(cell)) is not None
    ]


def staleness_rows(cell: ParallelCell) -> list[Row]:
    """A row for each number of updates that came between reading and writing."""
    counts = cell.detail.staleness
    total = sum(counts.values())
    return [
        {**head(cell), "staleness": value, "updates": counts[value], "share": counts[value] / total}
        for value in range(max(counts, default=-1) + 1)
    ]


def action_rows(cell: ParallelCell) -> list[Row]:
    """A row for each piece of a pipeline's step as it happened, a bar for each stage."""
    step = pipeline_step(cell.detail)
    if step is None:
        return []
    span_s = step.ended_s - step.began_s
    return [
        {
            "row": f"stage {action.stage} (rank {step.ranks[place]})",
            "stage": action.stage,
            "rank": step.ranks[place],
            "micro_batch": action.micro_batch,
            "kind": action.kind,
            "begin_ms": (action.began_s - step.began_s) * 1e3,
            "end_ms": (action.ended_s - step.began_s) * 1e3,
            "share": (action.ended_s - action.began_s) / span_s,
        }
        for place, actions in step.actions.items()
        for action in actions
    ]


def scratch_rows(cells: Iterable[ParallelCell]) -> list[Row]:
    """A row for each scheme, hidden size and number of workers of the network from scratch."""
    return [
        {
            "scheme": cell.scheme,
            "hidden": cell.hidden,
            "workers": cell.workers,
            "ranks": cell.ranks,
            "epoch_s": cell.cell.epoch_s,
            "waiting": waiting_share(cell),
            "loss": cell.cell.loss.mean if cell.cell.loss else None,
            "accuracy": cell.cell.accuracy.mean if cell.cell.accuracy else None,
        }
        for cell in sorted(cells, key=lambda cell: cell.workers)
    ]


def deviation_mark(pairs: Sequence[FormulaCheck]) -> str:
    """Return `=` if every rank's value equals its formula, else the largest deviation."""
    known = [pair.difference for pair in pairs if pair.difference is not None]
    if not known:
        return ""
    if all(pair.is_equal for pair in pairs if pair.difference is not None):
        return "="
    worst = max(known, key=abs)
    if worst == float("inf"):
        return "\N{NOT EQUAL TO} 0"
    return f"\N{NOT EQUAL TO} ({worst * 100:+.3g} %)".replace("-", "\N{MINUS SIGN}")
