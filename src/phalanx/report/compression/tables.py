"""The tables of a compression study. Pure."""

from __future__ import annotations

from phalanx.report.comparison import SeedSpread
from phalanx.report.compression.study_data import (
    MEMORY,
    NONE,
    CompressionStudyData,
    break_even_text,
    compressor_phrase,
)
from phalanx.report.content import Column, Table, make_table, words
from phalanx.report.format import UNKNOWN, amount, percent, points


def columns(data: CompressionStudyData, *, unit: str = " (ms)") -> list[Column[str]]:
    """Return the columns of the compressors; the terminal has room for some, and the findings say
    what is left out.

    unit: behind the name of a place.
    """
    plain = data.accuracy(NONE)

    def step(place: str) -> Column[str]:
        title = f"{'memory' if place == MEMORY else place}{unit}"
        return Column(title, lambda name: _step(data, name, place), short=title)

    return [
        words("sent as", compressor_phrase, short="sent as"),
        Column("bytes per step", data.sent_bytes, amount),
        Column("fewer", data.compression_ratio, "{:.3g}".format, short="fewer"),
        *map(step, data.places),
        Column("accuracy", data.accuracy, lambda own: percent(own.mean, 2), short="accuracy"),
        Column(
            "points",
            lambda name: plain and (own := data.accuracy(name)) and own.mean - plain.mean,
            points,
        ),
        Column("over seeds", data.accuracy, _seeds),
        words(
            "begins to pay",
            lambda name: (
                break_even_text(data.break_even_bandwidth(name))
                if data.fit is not None and name != NONE
                else None
            ),
        ),
    ]


def compressors(data: CompressionStudyData) -> Table:
    """A row a compressor, a column a place."""
    return make_table(
        "Compressors",
        "Steps are medians, in brackets how many times as fast as without compression. Accuracy is "
        "the mean over seeds, with the worst and the best.",
        columns(data),
        data.compressors,
    )


def fit_table(data: CompressionStudyData) -> Table:
    """The lines through the measured steps."""
    fit = data.fit
    if fit is None:
        return make_table("Fit", "", (), ())
    plain_s = fit.bases_s.get(NONE)
    columns: list[Column[str]] = [
        words("sent as", compressor_phrase),
        Column("base (ms)", lambda name: 1e3 * fit.bases_s[name], "{:.2f}".format),
        Column(
            "added to float32 (ms)",
            lambda name: 1e3 * (fit.bases_s[name] - (plain_s or fit.bases_s[name])),
            "{:+.2f}".format,
        ),
        Column("bytes per step", lambda name: fit.sent_bytes[name], amount),
    ]
    return make_table(
        "Fit",
        f"step = base + {fit.slope:.3f} \N{MULTIPLICATION SIGN} bytes \N{DIVISION SIGN} "
        f"bandwidth; no measured step is farther from it than {percent(fit.worst, 1)}.",
        columns,
        list(fit.bases_s),
    )


def _seeds(own: SeedSpread) -> str:
    return f"{own.low * 100:.2f} {UNKNOWN} {percent(own.high, 2)}, {own.seeds}"


def _step(data: CompressionStudyData, compressor: str, place: str) -> str | None:
    cell, factor = data.cell(compressor, place), data.step_speed_up(compressor, place)
    if cell is None:
        return None
    times = "" if factor is None or compressor == NONE else f" ({factor:.2f})"
    return f"{1e3 * cell.step_s:.3g}{times}"
