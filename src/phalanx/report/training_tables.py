"""Tables of trainings: baselines, configurations, runs, links."""

from __future__ import annotations

from typing import Any

from phalanx.records.divergence import loss_text
from phalanx.report.cells import Row
from phalanx.report.claims import mean_share
from phalanx.report.content import Column, words
from phalanx.report.format import (
    UNKNOWN,
    amount,
    fixed,
    grouped,
    one_decimal,
    percent,
    three_digits,
    two_decimals,
)
from phalanx.report.training_frames import LINKS
from phalanx.report.values import TableSpec

MARKS = {
    "completed": "\N{CHECK MARK}",
    "failed": "\N{BALLOT X}",
    "damaged": "\N{BALLOT X}",
    "interrupted": "\N{EM DASH}",
    "running": "\N{HORIZONTAL ELLIPSIS}",
    "planned": "\N{MIDDLE DOT}",
    "missing": "\N{MIDDLE DOT}",
}
SAYS = {"missing": "not run", "planned": "not run"}
RowColumn = Column[Row]


def with_ends(name: str, form: str = ".2f") -> Any:
    """Return the value of a column with its interval: 1.93 (1.81–2.05)."""

    def text(row: Row) -> str | None:
        value, low, high = (row.get(key) for key in (name, f"{name}_low", f"{name}_high"))
        if value is None:
            return None
        ends = "" if low is None or high is None else f" ({low:{form}}{UNKNOWN}{high:{form}})"
        return f"{value:{form}}{ends}"

    return text


def _range(row: Row) -> str:
    return f" {UNKNOWN} ".join(fixed(row[f"epoch_s_{end}"]) for end in ("low", "high"))


def over_seeds(row: Row) -> str | None:
    """Return the worst and the best accuracy of the seeds."""
    if row.get("accuracy") is None:
        return None
    if row["seeds"] == 1:
        return "1 seed"
    ends = f"{row['accuracy_low'] * 100:.2f} {UNKNOWN} {percent(row['accuracy_high'], 2)}"
    return f"{ends}, {row['seeds']} seeds"


MODEL: RowColumn = words("model", "panel")
STRATEGY: RowColumn = words("strategy", "strategy")
RANKS: RowColumn = Column("ranks", "ranks")
THREADS: RowColumn = Column("threads", "threads")
BATCH: RowColumn = Column("batch", "batch")
NODES: RowColumn = Column("nodes", "nodes", only="varied")
EPOCH: RowColumn = Column("epoch (s)", "epoch_s", fixed)
RATE: RowColumn = Column("samples/s", "rate", grouped)
SPEED_UP: RowColumn = Column("speed-up", with_ends("speed_up"))
EFFICIENCY: RowColumn = Column("efficiency", "efficiency", one_decimal)
ACCURACY: RowColumn = Column("accuracy", "accuracy", two_decimals)
SPLIT = (STRATEGY, RANKS, THREADS, BATCH)
PROCESSOR: tuple[RowColumn, ...] = (
    Column("user (s)", "user_s", fixed),
    Column("system (s)", "system_s", fixed),
)


def _by_batch(row: Row) -> int:
    batch: int = row["batch_size"]
    return batch


BASELINES = TableSpec(
    title="Sequential baselines",
    note="One process, no communication. One thread is the T(1) of every speed-up.",
    columns=(MODEL, BATCH, THREADS, EPOCH, RATE, SPEED_UP, EFFICIENCY, ACCURACY),
    where=lambda row: row["strategy"] == "sequential",
    order=_by_batch,
)
CONFIGURATIONS = TableSpec(
    title="Configurations",
    note="Completed runs that differ only in their seed, together. Times are medians over epochs "
    "and seeds, with the fastest and the slowest epoch; a speed-up has its interval of 95 %; "
    "accuracy is the mean over seeds, with the worst and the best.",
    columns=(
        *(MODEL, *SPLIT, NODES, EPOCH, Column("range (s)", _range), *PROCESSOR, RATE, SPEED_UP),
        *(EFFICIENCY, Column("comm.", "communication", one_decimal), ACCURACY),
        Column("over seeds", over_seeds),
    ),
    order=_by_batch,
)


def _median_epoch(row: Row) -> float | None:
    measure = row["_measure"]
    value: float | None = measure.epoch_s
    return value


def _status(row: Row) -> str:
    return SAYS.get(row["status"], str(row["status"]))


RUNS = TableSpec(
    title="Runs",
    note="Epoch times in the order they were run; the first is warm-up where there are three. User "
    "and system: processor time of all ranks and threads in such an epoch, which is more than "
    "the wall-clock time where several cores work, and counts waiting as far as it spins.",
    frame="runs",
    columns=(
        words("run", "run"),
        words("status", lambda row: f"{MARKS[row['status']]} {_status(row)}"),
        *(*SPLIT, NODES),
        Column("seed", "seed"),
        Column("epoch (s)", _median_epoch, fixed),
        *PROCESSOR,
        RATE,
        Column("comm.", "communication", one_decimal),
        Column("loss", "loss", loss_text),
        ACCURACY,
        Column("start-up (s)", "startup_s", fixed),
        Column("epochs (s)", lambda row: " ".join(map(fixed, row["epochs_s"])) or None),
        words("error", "error"),
    ),
)


SHORT_RUNS = TableSpec(
    title="",
    frame="short runs",
    on_terminal=True,
    columns=(
        words("model", lambda row: row.get("model", row["run"]), short="model"),
        words("strategy", "strategy", short="strategy"),
        Column("ranks", "ranks", short="ranks"),
        Column("threads", "threads", short="threads"),
        Column("batch", "batch", short="batch", only="varied"),
        Column("nodes", "nodes", short="nodes", only="varied"),
        Column("seed", "seed", short="seed", only="varied"),
        Column("epoch s", _median_epoch, fixed, short="epoch s"),
        Column("samples/s", "rate", grouped, short="samples/s"),
        Column("speed-up", "speed_up", "{:.2f}".format, short="speed-up"),
        Column("comm %", "communication", one_decimal, short="comm %"),
        Column("acc. %", "accuracy", two_decimals, short="acc. %"),
        words("status", _status, short="status", only="varied"),
    ),
)


def _share(link: str) -> RowColumn:
    def text(row: Row) -> str | None:
        is_known = row[f"link_{link}"] is not None
        return mean_share(row["_cell"].values(f"link_{link}")) if is_known else None

    return Column(LINKS[link], text, only="known")


def _bytes_words(row: Row) -> str | None:
    sent = row["link_network_bytes"]
    if sent is None:
        return None
    return f"{amount(sent)} (by formula)" if row["link_is_formula"] else amount(sent)


LINK_TABLE = TableSpec(
    title="Links",
    note="Of a mean step: exchange in the memory of a node and between nodes, as the rank that "
    "came last to it has measured them, and what the other ranks waited for it, mean over "
    "ranks, with intervals of 95 % over runs. What is hidden behind the backward pass does "
    "not count. Bytes: what a node sends to the others in a step.",
    frame="linked",
    columns=(
        *(
            MODEL,
            *SPLIT,
            NODES,
            Column("step (ms)", lambda row: three_digits(1e3 * row["link_step_s"])),
        ),
        *map(_share, LINKS),
        Column("sent between nodes", _bytes_words),
    ),
)
