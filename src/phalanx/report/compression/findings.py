"""Findings of a compression study, as sentences. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

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
from phalanx.report.disturbance import with_disturbance
from phalanx.report.format import joined, percent, points_with_span, ratio, sentence, span
from phalanx.report.statistics import Interval
from phalanx.report.study_content import topics_of_runs

LINE_WITHIN = 0.15  # steps farther than this from the fitted line do not lie on one
NO_LINE = (
    " That is no line: the bandwidths above are guesses. Was the machine busy? "
    "Measure once more when it is quiet."
)


def findings(data: CompressionStudyData) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    topics = [make_topic(title, rule, make(data)) for title, rule, make in _QUESTIONS]
    return told(*topics, *topics_of_runs(data.measures))


def headline(data: CompressionStudyData) -> str:
    """Name the compressor that is faster and holds the accuracy.

    On the link nearest to 1 Gbit/s where there is one. Compressors known to hold the accuracy are
    preferred to those with unknown effect.
    """
    place = nearest_gigabit(data) or MEMORY
    runs = data.measures.runs
    if not any(cell.place == place for cell in data.cells):
        return "No run came to its end yet."
    chosen = best_compressor(data, place)
    if chosen is None:
        return with_disturbance(
            f"In {place} nothing is seen to be faster than gradients as they are", runs
        )
    cell, interval = chosen
    where = "in shared memory" if place == MEMORY else f"on a link of {place}"
    text = f"{compressor_phrase(cell.compressor)} makes steps {where} {ratio(interval)} as fast"
    if data.holds_accuracy(cell.compressor) == "holds":
        text += f" and holds the accuracy, to {MARGIN * 100:g} points"
    elif data.accuracy(cell.compressor) is None:
        text += "; its accuracy was not measured"
    else:
        text += "; what that does to the accuracy cannot be told"
    return with_disturbance(sentence(text).rstrip("."), runs)


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
    for wanted in ("holds", "cannot be told"):
        held = [pair for pair in found if data.holds_accuracy(pair[0].compressor) == wanted]
        if held:
            return min(held, key=lambda pair: pair[0].step_s)
    return None


def _by_place(data: CompressionStudyData) -> list[tuple[str, str]]:
    labelled = []
    for place in data.places:
        known = {
            compressor_phrase(c): interval
            for c in data.compressors
            if c != NONE and (interval := data.step_speed_up_interval(c, place))
        }
        if not known:
            continue
        parts = []
        for verdict, words in (
            ("higher", "times as fast as without"),
            ("cannot be told", "not told from without"),
            ("lower", "slower"),
        ):
            some = [(i, name) for name, i in known.items() if i.verdict(1) == verdict]
            if some:
                some.sort(key=lambda pair: -pair[0].estimate)
                listed = [f"{name} {i.estimate:.2f} ({span(i)})" for i, name in some]
                parts.append(f"{words}: {joined(listed)}")
        labelled.append((place, sentence("; ".join(parts))))
    return labelled


def _pays(data: CompressionStudyData) -> list[tuple[str, str]]:
    fit = data.fit
    if fit is None:
        return []
    labelled = []
    for compressor in data.compressors:
        if compressor == NONE or compressor not in fit.bases_s or NONE not in fit.bases_s:
            continue
        below = data.break_even_bandwidth(compressor)
        added_ms = 1e3 * (fit.bases_s[compressor] - fit.bases_s[NONE])
        if below is None:
            text = "pays on no link: it sends no fewer bytes"
        elif math.isinf(below):
            text = f"pays on any link: a step without its sending takes {-added_ms:.2f} ms less"
        else:
            text = (
                f"pays below {bandwidth_text(below)}: it costs {added_ms:.2f} ms of coding a step"
            )
        labelled.append((compressor_phrase(compressor), sentence(text)))
    if labelled:
        labelled.append(
            (
                "the fit",
                f"Steps are within {percent(fit.worst, 0)} of base + {fit.slope:.2f} "
                "\N{MULTIPLICATION SIGN} bytes \N{DIVISION SIGN} bandwidth."
                + (NO_LINE if fit.worst > LINE_WITHIN else ""),
            )
        )
    return labelled


def _accuracy(data: CompressionStudyData) -> list[tuple[str, str]]:
    plain = data.accuracy(NONE)
    if plain is None:
        return []
    labelled = [(compressor_phrase(NONE), f"{plain.text}.")]
    for compressor in data.compressors:
        own = data.accuracy(compressor)
        if compressor == NONE or own is None:
            continue
        difference = data.accuracy_difference(compressor)
        text = f"{percent(own.mean, 2)}: "
        if difference is None:
            text += "what it costs cannot be told from a single seed."
        else:
            verdict = {"holds": "holds it", "is below": "is below", "cannot be told": ""}
            word = verdict[data.holds_accuracy(compressor)] or "cannot be told"
            text += f"{word}, {points_with_span(difference)}."
        labelled.append((compressor_phrase(compressor), text))
    return labelled


_QUESTIONS: tuple[tuple[str, str, Callable[[CompressionStudyData], list[tuple[str, str]]]], ...] = (
    (
        "How much faster is a step, and where?",
        "Medians, with the interval of the ratio, all compressors of a place together; what an "
        "interval that holds 1 does not tell apart is not called faster.",
        _by_place,
    ),
    (
        "Below which bandwidth does each begin to pay?",
        "Where the fitted lines of a compressor and of float32 cross. The imitated link has every "
        "rank send by itself, one message after the other.",
        _pays,
    ),
    (
        "Is the accuracy held?",
        "The difference is taken seed by seed. A compressor holds the accuracy when its interval "
        f"lies above \N{MINUS SIGN}{MARGIN * 100:g} points and not wholly below 0.",
        _accuracy,
    ),
)
