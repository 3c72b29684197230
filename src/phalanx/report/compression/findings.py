"""Findings of a compression study. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from phalanx.report.compression.study_data import (
    MARGIN,
    MEMORY,
    NONE,
    CompressionCell,
    CompressionStudyData,
    bandwidth_text,
    compressor_phrase,
)
from phalanx.report.content import Topic, make_topic, told
from phalanx.report.findings import Finding, Speed, headline_text
from phalanx.report.format import percent, ratio
from phalanx.report.statistics import Interval
from phalanx.report.study_content import topics_of_runs

LINE_WITHIN = 0.15  # steps farther than this from the fitted line do not lie on one


def findings(data: CompressionStudyData) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    compressors = [name for name in data.compressors if name != NONE]
    return told(
        make_topic(
            "How much faster is a step, and over which link?",
            "Medians, with the interval of the ratio, corrected for the compressors of a place. A "
            "ratio counts as faster only if its 95 % interval lies above 1.",
            [(place, steps_in(data, place)) for place in data.places],
        ),
        make_topic(
            "What does each cost, and below which bandwidth does it begin to pay?",
            "Accuracy is compared seed by seed. A compressor holds it when the interval of the "
            f"difference lies above \N{MINUS SIGN}{MARGIN * 100:g} points and not wholly below 0. "
            "It begins to pay where the fitted lines of a compressor and of float32 cross. The "
            "imitated link has every rank send by itself, one message after the other.",
            [
                *((compressor_phrase(name), costs_of(data, name)) for name in compressors),
                ("the fit", doubtful_fit(data)),
            ],
        ),
        *topics_of_runs(data.measures),
    )


def headline(data: CompressionStudyData) -> str:
    """Name the compressor that is faster and holds the accuracy.

    On the link nearest to 1 Gbit/s where there is one. Compressors known to hold the accuracy are
    preferred to those with unknown effect.
    """
    place = nearest_gigabit(data) or MEMORY
    if not any(cell.place == place for cell in data.cells):
        return "No run came to its end yet."
    chosen = best_compressor(data, place)
    if chosen is None:
        return f"In {place} no compressor is significantly faster than gradients as they are"
    cell, interval = chosen
    where = "in shared memory" if place == MEMORY else f"on a link of {place}"
    text = f"{compressor_phrase(cell.compressor)} makes steps {where} {ratio(interval)} as fast"
    if data.holds_accuracy(cell.compressor) == "holds":
        text += f" and holds the accuracy, to {MARGIN * 100:g} points"
    elif data.accuracy(cell.compressor) is None:
        text += "; its accuracy was not measured"
    else:
        text += "; its effect on the accuracy is unclear"
    return headline_text(text)


def nearest_gigabit(data: CompressionStudyData) -> str | None:
    """The link nearest to 1 Gbit/s."""
    rated = [
        (abs(math.log(cell.bandwidth_bytes_per_s / 125e6)), cell.place)
        for cell in data.cells
        if cell.bandwidth_bytes_per_s
    ]
    return min(rated)[1] if rated else None


def best_compressor(
    data: CompressionStudyData, place: str
) -> tuple[CompressionCell, Interval] | None:
    """Return the compressor with the shortest step that is faster and holds the accuracy.

    Faster than without compression, significantly. Where none is known to hold the accuracy, those
    not known to lose it are chosen from. None where none is faster.
    """
    found = [
        (cell, interval)
        for cell in data.cells
        if cell.place == place and cell.compressor != NONE
        if (interval := data.step_speed_up_interval(cell.compressor, place)) is not None
        if interval.verdict(1) == "higher"
    ]
    for wanted in ("holds", "unclear"):
        held = [pair for pair in found if data.holds_accuracy(pair[0].compressor) == wanted]
        if held:
            return min(held, key=lambda pair: pair[0].step_s)
    return None


def steps_in(data: CompressionStudyData, place: str) -> list[Speed]:
    """Return the speed of every compressor in a place, the fastest first."""
    found = []
    for name in data.compressors:
        interval = data.step_speed_up_interval(name, place)
        if name != NONE and interval is not None:
            found.append((interval.estimate, compressor_phrase(name), interval))
    return [
        Speed(subject=phrase, against=compressor_phrase(NONE), interval=interval, n=len(found))
        for _, phrase, interval in sorted(found, key=lambda one: -one[0])
    ]


def costs_of(data: CompressionStudyData, compressor: str) -> list[Finding]:
    """Return the accuracy that a compressor costs, and the bandwidth below which it pays."""
    found: list[Finding] = []
    own, plain = data.accuracy(compressor), data.accuracy(NONE)
    if own is not None and plain is not None:
        difference = data.accuracy_difference(compressor)
        found.append(replace(difference, subject=percent(own.mean, 2)))
    fit = data.fit
    if fit is None or not {compressor, NONE} <= set(fit.bases_s):
        return found
    below = data.break_even_bandwidth(compressor)
    added_ms = 1e3 * (fit.bases_s[compressor] - fit.bases_s[NONE])
    if below is None:
        text = "it pays on no link: it sends no fewer bytes"
    elif math.isinf(below):
        text = f"it pays on any link: a step without its sending takes {-added_ms:.2f} ms less"
    else:
        text = f"it pays below {bandwidth_text(below)}: it costs {added_ms:.2f} ms per step"
    return [*found, text]


def doubtful_fit(data: CompressionStudyData) -> str | None:
    """Return that the measured steps lie on no line, where they do not."""
    fit = data.fit
    if fit is None or fit.worst <= LINE_WITHIN:
        return None
    return (
        f"Steps are within {percent(fit.worst, 0)} of base + {fit.slope:.2f} "
        "\N{MULTIPLICATION SIGN} bytes \N{DIVISION SIGN} bandwidth. That is no line: the "
        "bandwidths above are guesses. Was the machine busy? Measure once more when it is quiet."
    )
