"""Findings of a study of data loading. Pure, but for printing them."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from phalanx.records.io import Cache
from phalanx.report.finding_sentences import sentence
from phalanx.report.format import duration, joined, percent
from phalanx.report.io import finding_sentences
from phalanx.report.io.comparison import (
    PHRASES,
    balance_s,
    best_of_each_format,
    caches_of,
    fastest,
    floor_of,
    how,
    in_cache,
    own,
)
from phalanx.report.io.findings import NO_BREAK, conditions, memory
from phalanx.report.io.measures import IoMeasure, IoPoint
from phalanx.report.io.study import IoStudy, read_io_study
from phalanx.report.terminal import print_findings
from phalanx.report.topic import Sentence, Topic

AS_FAST_WITHIN = 0.05


def study_findings(study: IoStudy) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    questions = (
        (
            "Which to take",
            "The least that keeps the accelerator busy: fewest readers, then fewest batches ahead, "
            "then the fastest format; where nothing does, the fastest.",
            (choice,),
        ),
        (
            "I/O-bound or compute-bound",
            "A way is compute-bound where a step computes longer than a batch takes flat out; "
            "measured: the shortest compute time at which the floor was reached.",
            (bounds, finding_sentences.bound),
        ),
        (
            "Which format?",
            "Flat out, the fastest way of each; medians over all runs.",
            (finding_sentences.fastest_format, finding_sentences.against_read),
        ),
        (
            "More readers, more batches ahead",
            f"Flat out, in the fastest format; gains below {percent(AS_FAST_WITHIN, 0)} are none.",
            (more_readers, more_depth),
        ),
    )
    topics = [
        Topic(
            title=title,
            rule=rule,
            sentences=tuple(
                Sentence(label=f"{measure.name}, {cache}", text=text)
                for measure in study.profiles
                for cache in caches_of(measure.points)
                for make_sentence in functions
                if (text := make_sentence(measure, cache))
            ),
        )
        for title, rule, functions in questions
    ]
    topics.append(conditions(study.runs))
    return tuple(topic for topic in topics if topic.sentences)


def choice(measure: IoMeasure, cache: Cache) -> str | None:
    """The cheapest way that reaches the floor at the profile's own compute time."""
    chosen = chosen_way(measure, cache)
    if chosen is None or measure.bench is None:
        return None
    floor, step = percent(floor_of(measure), 0), duration(measure.bench.setting.compute_s)
    busy = percent(chosen.utilisation or 0, 1)
    name = PHRASES[chosen.cell.format]
    if (chosen.utilisation or 0.0) >= floor_of(measure):
        return sentence(
            f"at {step} a step {name} with {how(chosen.cell)} suffice: busy {busy}, floor {floor}"
        )
    return sentence(
        f"at {step} a step nothing reaches {floor}; the most is {busy}, with {name}, "
        f"{how(chosen.cell)}"
    )


def chosen_way(measure: IoMeasure, cache: Cache) -> IoPoint | None:
    """The least that reaches the floor, or what comes nearest to it."""
    points = own(in_cache(measure.paced, cache))
    reach = [point for point in points if (point.utilisation or 0.0) >= floor_of(measure)]
    if reach:
        return min(reach, key=lambda p: (p.cell.readers, p.cell.depth, -flat_rate(measure, p)))
    return max(points, key=lambda p: p.utilisation or 0.0, default=None)


def flat_rate(measure: IoMeasure, point: IoPoint) -> float:
    flat = measure.flat_of(point.cell)
    return flat.samples_per_s if flat else 0.0


def bounds(measure: IoMeasure, cache: Cache) -> str | None:
    """Return, for each format, the compute time below which it is I/O-bound."""
    texts = []
    for best in best_of_each_format(measure.flat, cache):
        reached = shortest_s(measure, best)
        measured = f"floor reached at {duration(reached)}" if reached else "floor never reached"
        name = PHRASES[best.cell.format]
        texts.append(f"{name} below {duration(balance_s(measure, best))} a step ({measured})")
    return sentence(f"I/O-bound: {joined(texts)}") if texts else None


def shortest_s(measure: IoMeasure, flat: IoPoint) -> float | None:
    """The shortest compute time at which this format, in any way, reached the floor."""
    floor = floor_of(measure)
    cell = flat.cell
    times = [
        point.compute_s
        for point in own(in_cache(measure.with_compute, cell.cache))
        if point.cell.format == cell.format and (point.utilisation or 0.0) >= floor
    ]
    return min(times, default=None)


def more_readers(measure: IoMeasure, cache: Cache) -> str | None:
    return _more(measure, cache, "readers", "readers")


def more_depth(measure: IoMeasure, cache: Cache) -> str | None:
    return _more(measure, cache, "depth", "batches ahead")


def _more(measure: IoMeasure, cache: Cache, field: str, word: str) -> str | None:
    """Return the gain of larger values of `field`, with the other options at their best, in the
    fastest format."""
    best = fastest(best_of_each_format(measure.flat, cache))
    if best is None:
        return None
    rates: dict[int, float] = {}
    for point in own(in_cache(measure.flat, cache)):
        if point.cell.format == best.cell.format and point.cell.readers:
            value = int(getattr(point.cell, field))
            rates[value] = max(rates.get(value, 0.0), point.samples_per_s)
    if len(rates) < 2:
        return None
    least = min(rates)
    name = PHRASES[best.cell.format]
    gains = [(value, rates[value] / rates[least]) for value in sorted(rates) if value != least]
    if max(gain for _, gain in gains) <= 1 + AS_FAST_WITHIN:
        return sentence(f"{name}: more than {least} {word} gain nothing")
    texts = [f"{value} {word} {gain:.2f} times" for value, gain in gains]
    return sentence(f"{name}: {joined(texts)} the samples/s of {least}")


def study_headline(study: IoStudy) -> str:
    """The one sentence that the page begins with: of the first profile, from the last cache."""
    for measure in study.profiles:
        cache = caches_of(measure.points)[-1]
        chosen = chosen_way(measure, cache)
        if chosen is None or measure.bench is None:
            continue
        verb = "keep" if (chosen.utilisation or 0.0) >= floor_of(measure) else "keep only"
        text = (
            f"{measure.name} from {memory(cache)}: {PHRASES[chosen.cell.format]} with "
            f"{how(chosen.cell)} {verb} an {measure.bench.setting.accelerator.upper()} busy "
            f"{percent(chosen.utilisation or 0.0, 1)} of the time"
        )
        return text.replace(" %", f"{NO_BREAK}%")
    return "No run of this study was completed yet"


def print_summary(folder: Path, console: Console) -> None:
    """The findings, on the terminal."""
    print_findings(study_findings(read_io_study(folder)), console)
