"""The tables of a compression study. Pure."""

from __future__ import annotations

from phalanx.report.compression.study_data import (
    MEMORY,
    NONE,
    CompressionStudyData,
    break_even_text,
    compressor_phrase,
)
from phalanx.report.content import Table, make_table
from phalanx.report.format import UNKNOWN, amount, percent, points


def compressors(data: CompressionStudyData, *, unit: str = " (ms)") -> Table:
    """A row a compressor, a column a place.

    unit: behind the name of a place.
    """
    places = data.places
    columns = ["sent as", "bytes a step#", "fewer#"]
    columns += [f"{_short(place)}{unit}#" for place in places]
    columns += ["accuracy#", "points#", "over seeds#", "begins to pay"]
    return make_table(
        "Compressors",
        "Steps are medians, in brackets how many times as fast as without compression. Accuracy is "
        "the mean over seeds, with the worst and the best.",
        "|".join(columns),
        [_row(data, compressor, places) for compressor in data.compressors],
    )


def fit_table(data: CompressionStudyData) -> Table:
    """The lines through the measured steps."""
    fit = data.fit
    return make_table(
        "Fit",
        ""
        if fit is None
        else f"step = base + {fit.slope:.3f} \N{MULTIPLICATION SIGN} bytes \N{DIVISION SIGN} "
        f"bandwidth; no measured step is farther from it than {percent(fit.worst, 1)}.",
        "sent as|base (ms)#|added to float32 (ms)#|bytes a step#",
        []
        if fit is None
        else [
            (
                compressor_phrase(name),
                f"{1e3 * base_s:.2f}",
                f"{1e3 * (base_s - fit.bases_s.get(NONE, base_s)):+.2f}",
                amount(fit.sent_bytes[name]),
            )
            for name, base_s in fit.bases_s.items()
        ],
    )


def _row(data: CompressionStudyData, compressor: str, places: list[str]) -> tuple[str, ...]:
    sent, factor = data.sent_bytes(compressor), data.compression_ratio(compressor)
    own, plain = data.accuracy(compressor), data.accuracy(NONE)
    known = data.fit is not None and compressor != NONE
    return (
        compressor_phrase(compressor),
        UNKNOWN if sent is None else amount(sent),
        UNKNOWN if factor is None else f"{factor:.3g}",
        *(_step(data, compressor, place) for place in places),
        UNKNOWN if own is None else percent(own.mean, 2),
        UNKNOWN if own is None or plain is None else points(own.mean - plain.mean),
        UNKNOWN
        if own is None
        else f"{own.low * 100:.2f} {UNKNOWN} {percent(own.high, 2)}, {own.seeds}",
        break_even_text(data.break_even_bandwidth(compressor)) if known else UNKNOWN,
    )


def _step(data: CompressionStudyData, compressor: str, place: str) -> str:
    cell, factor = data.cell(compressor, place), data.step_speed_up(compressor, place)
    if cell is None:
        return UNKNOWN
    times = "" if factor is None or compressor == NONE else f" ({factor:.2f})"
    return f"{1e3 * cell.step_s:.3g}{times}"


def _short(place: str) -> str:
    return "memory" if place == MEMORY else place
