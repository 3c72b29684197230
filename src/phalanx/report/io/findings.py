"""Findings of data loading: of a measurement, and of a study of several. Pure.

A function of a measurement and cache returns None where the records have no data for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.records.io import Cache
from phalanx.report.content import Topic, make_topic, told
from phalanx.report.findings import Agreement, FastestFinding, Finding, Speed
from phalanx.report.format import amount, duration, joined, percent, ratio, sentence, three_digits
from phalanx.report.io.comparison import (
    LOADERS,
    PHRASES,
    balance_s,
    best_of_each_format,
    busiest,
    busy,
    caches_of,
    compare_loaders,
    fastest,
    fewest_ranks,
    floor_of,
    how,
    in_cache,
    is_cold,
    own,
    rivals,
)
from phalanx.report.io.measures import IoMeasure, IoPoint
from phalanx.report.io.study import IoStudy
from phalanx.report.statistics import not_told_apart
from phalanx.report.study_content import NOTHING_COMPLETED

SAME_WITHIN = 0.05  # ratios of rounds closer to 1 are called none
NO_BREAK = "\N{NO-BREAK SPACE}"
Question = Callable[[IoMeasure, Cache], Finding | None]


def findings(measure: IoMeasure) -> tuple[Topic, ...]:
    """The topics that a measurement has something to say about."""

    def topic(title: str, rule: str, *questions: Question) -> Topic:
        return _topic(title, rule, [measure], lambda _, cache: cache.capitalize(), questions)

    return told(
        topic(
            "Is the accelerator kept busy?",
            "Utilisation: compute ÷ total time of an epoch, median over epochs; the best way of "
            "each format.",
            utilisation,
            bound,
        ),
        topic("Which format?", FORMATS_RULE, fastest_format),
        topic(
            "Against PyTorch's DataLoader",
            "In the fastest format that both read, each at its best, on the same shards and in "
            "turn; its workers stay and were started before the clock. The range is that of the "
            "rounds.",
            against_torch,
        ),
        conditions([measure]),
    )


def study_findings(study: IoStudy) -> tuple[Topic, ...]:
    """The topics that a study has something to say about."""

    def topic(title: str, rule: str, *questions: Question) -> Topic:
        return _topic(title, rule, study.profiles, lambda m, c: f"{m.name}, {c}", questions)

    return told(
        topic(
            "Which to take",
            "The least that keeps the accelerator busy: fewest readers, then fewest batches "
            "ahead, then the fastest format; where nothing does, the fastest.",
            choice,
        ),
        topic(
            "I/O-bound or compute-bound",
            "A way is compute-bound where a step computes longer than a batch takes flat out; "
            "measured: the shortest compute time at which the floor was reached.",
            bounds,
        ),
        topic("Which format?", FORMATS_RULE, fastest_format),
        conditions(study.runs),
    )


def _topic(
    title: str,
    rule: str,
    measures: Sequence[IoMeasure],
    label: Callable[[IoMeasure, Cache], str],
    questions: Sequence[Question],
) -> Topic:
    return make_topic(
        title,
        rule,
        [
            (label(measure, cache), question(measure, cache))
            for measure in measures
            for cache in caches_of(measure.points)
            for question in questions
        ],
    )


def headline(measure: IoMeasure) -> str:
    """The one sentence that the page of a measurement begins with."""
    points = [p for p in own(measure.paced) if p.utilisation is not None]
    if points and measure.bench is not None:
        best = max(points, key=busy)
        verb = "is busy" if busy(best) >= floor_of(measure) else "is only busy"
        setting = measure.bench.setting
        text = (
            f"{PHRASES[best.cell.format]} from {_memory(best.cell.cache)}: an emulated "
            f"{setting.accelerator.upper()} {verb} {percent(busy(best), 1)} of the time with "
            f"{setting.profile.name}"
        )
        return sentence(text).rstrip(".").replace(" %", f"{NO_BREAK}%")
    for cache in caches_of(measure.flat)[:1]:
        if found := fastest(best_of_each_format(measure.flat, cache, fewest_ranks(measure))):
            return sentence(
                f"{PHRASES[found.cell.format]}: {three_digits(found.samples_per_s)} samples/s"
            ).rstrip(".")
    return "No way of loading was measured to its end yet"


def study_headline(study: IoStudy) -> str:
    """The one sentence that the page begins with: of the first profile, from the last cache."""
    for measure in study.profiles:
        cache = caches_of(measure.points)[-1]
        chosen = chosen_way(measure, cache)
        if chosen is None or measure.bench is None:
            continue
        verb = "keep" if busy(chosen) >= floor_of(measure) else "keep only"
        text = (
            f"{measure.name} from {_memory(cache)}: {PHRASES[chosen.cell.format]} with "
            f"{how(chosen.cell)} {verb} an {measure.bench.setting.accelerator.upper()} busy "
            f"{percent(busy(chosen), 1)} of the time"
        )
        return text.replace(" %", f"{NO_BREAK}%")
    return NOTHING_COMPLETED


def _memory(cache: Cache) -> str:
    return "memory" if cache == "warm" else "the disk"


def utilisation(measure: IoMeasure, cache: Cache) -> Agreement | None:
    """Return the formats that keep the accelerator busy, and those that do not."""
    floor = floor_of(measure)
    points = [p for p in own(in_cache(measure.paced, cache)) if p.utilisation is not None]
    best = list(busiest(points).values())
    if not best:
        return None
    shares = {p: f"{PHRASES[p.cell.format]} ({percent(busy(p), 1)})" for p in best}
    reach = [words for point, words in shares.items() if busy(point) >= floor]
    return Agreement(
        num=len(reach),
        n=len(best),
        noun="formats",
        holds=f"reach the floor of {percent(floor, 0)}" + (f": {joined(reach)}" if reach else ""),
        exceptions=tuple(words for point, words in shares.items() if busy(point) < floor),
    )


def bound(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the compute time from which the fastest way keeps up, relative to the profile's."""
    best = fastest(best_of_each_format(measure.flat, cache, fewest_ranks(measure)))
    if best is None or measure.bench is None:
        return None
    setting, least_s = measure.bench.setting, balance_s(measure, best)
    margin = setting.compute_s / least_s
    which = "compute-bound" if margin >= 1 else "I/O-bound"
    far = f"{margin:.1f} times what it takes" if margin >= 1 else f"{percent(margin, 0)} of that"
    return sentence(
        f"a batch of {amount(setting.batch_size * setting.sample_bytes)} takes "
        f"{duration(least_s)} from {PHRASES[best.cell.format]}; a step computes "
        f"{duration(setting.compute_s)}, {far}: {which}"
    )


def fastest_format(measure: IoMeasure, cache: Cache) -> FastestFinding | None:
    """Return the fastest format, or that it cannot be told from others."""
    points = best_of_each_format(measure.flat, cache, fewest_ranks(measure))
    best = fastest(points)
    if best is None or len(points) < 2:
        return None
    others = [point for point in points if point is not best]
    least = min(others, key=lambda point: point.samples_per_s)
    near = not_told_apart(
        others, lambda other: compare_loaders(best, other), neutral=1 + SAME_WITHIN
    )
    return FastestFinding(
        subject=PHRASES[best.cell.format],
        rivals=tuple(PHRASES[point.cell.format] for point in near),
        n=len(points),
        noun="formats",
        facts=f"{_rate(best)} with {how(best.cell)}, {ratio(compare_loaders(best, least))} "
        f"those of {PHRASES[least.cell.format]}",
    )


def against_torch(measure: IoMeasure, cache: Cache) -> Speed | None:
    """Compare with PyTorch's DataLoader, in the fastest format that both read."""
    points = best_of_each_format(measure.flat, cache, fewest_ranks(measure))
    for point in sorted(points, key=lambda p: -p.samples_per_s):
        theirs = [r for name in ("torch", "torch-batched") for r in rivals(measure, point, name)]
        if best := fastest(theirs):
            return Speed(
                subject="Phalanx",
                against=LOADERS[best.cell.loader],
                interval=compare_loaders(point, best),
                facts=f"{_rate(point)} with {how(point.cell)} against {_rate(best)} with "
                f"{how(best.cell)}",
                where=f"from {PHRASES[point.cell.format]}",
                units="rounds",
                same_within=SAME_WITHIN,
            )
    return None


def _rate(point: IoPoint) -> str:
    return f"{three_digits(point.samples_per_s)} samples/s"


def choice(measure: IoMeasure, cache: Cache) -> str | None:
    """The cheapest way that reaches the floor at the profile's own compute time."""
    chosen = chosen_way(measure, cache)
    if chosen is None or measure.bench is None:
        return None
    floor, step = percent(floor_of(measure), 0), duration(measure.bench.setting.compute_s)
    reached, name = percent(busy(chosen), 1), PHRASES[chosen.cell.format]
    if busy(chosen) >= floor_of(measure):
        return sentence(
            f"at {step} per step {name} with {how(chosen.cell)} suffice: busy {reached}, "
            f"floor {floor}"
        )
    return sentence(
        f"at {step} per step nothing reaches {floor}; the most is {reached}, with {name}, "
        f"{how(chosen.cell)}"
    )


def chosen_way(measure: IoMeasure, cache: Cache) -> IoPoint | None:
    """The least that reaches the floor, or what comes nearest to it."""
    points = own(in_cache(measure.paced, cache))
    reach = [point for point in points if busy(point) >= floor_of(measure)]
    if reach:
        return min(reach, key=lambda p: (p.cell.readers, p.cell.depth, -_flat_rate(measure, p)))
    return max(points, key=busy, default=None)


def _flat_rate(measure: IoMeasure, point: IoPoint) -> float:
    flat = measure.flat_of(point.cell)
    return flat.samples_per_s if flat else 0.0


def bounds(measure: IoMeasure, cache: Cache) -> str | None:
    """Return, for each format, the compute time below which it is I/O-bound."""
    floor = floor_of(measure)
    texts = []
    for best in best_of_each_format(measure.flat, cache):
        reached_s = [
            point.compute_s
            for point in own(in_cache(measure.with_compute, cache))
            if point.cell.format == best.cell.format and busy(point) >= floor
        ]
        at = f"at {duration(min(reached_s))}" if reached_s else "never"
        name = PHRASES[best.cell.format]
        balance = duration(balance_s(measure, best))
        measured = f"floor reached {at}" if reached_s else f"floor {at} reached"
        texts.append(f"{name} below {balance} per step ({measured})")
    return sentence(f"I/O-bound: {joined(texts)}") if texts else None


def conditions(measures: Sequence[IoMeasure]) -> Topic:
    """Report scaled compute times, caches that were not cold, and what was not measured."""
    runs_by_text: dict[str, list[str]] = {}
    for measure in measures:
        for text in _conditions_of(measure):
            runs_by_text.setdefault(text, []).append(measure.name)
    sentences = [
        # A sentence that holds for all measurements is printed once.
        ("" if len(names) == len(measures) else joined(names), text)
        for text, names in runs_by_text.items()
    ]
    stores = [measure.bench.storage for measure in measures if measure.bench]
    kinds = list(dict.fromkeys(s.file_system or "an unknown file system" for s in stores))
    if kinds:
        text = (
            f"measured on {joined(kinds)}; neither another file system, such as one over a "
            "network, nor the way from memory to a GPU was measured"
        )
        sentences.append(("", sentence(text)))
    return make_topic(
        "What this holds for",
        "An accelerator is emulated: this process sleeps while one would compute.",
        sentences,
    )


def _conditions_of(measure: IoMeasure) -> list[str]:
    texts = []
    if measure.bench:
        if cold := cold_cache(measure):
            texts.append(cold)
        if measure.bench.setting.scaled:
            texts.append(f"Scaled: {'; '.join(measure.bench.setting.scaled)}.")
        left_out = measure.bench.left_out.items()
        texts += [f"Not measured: {PHRASES.get(name, name)}; {why}." for name, why in left_out]
    if wrong := sum(point.wrong for point in measure.points):
        texts.append(f"{wrong:,} samples were not those asked for: no rate here counts.")
    if measure.status in ("missing", "interrupted"):
        texts.append("It was not measured to its end.")
    elif measure.error:
        texts.append(f"It {measure.status}: {measure.error}")
    return texts


def cold_cache(measure: IoMeasure) -> str | None:
    """Return a sentence on how cold the cold epochs were."""
    points = in_cache(measure.points, "cold")
    cold = [is_cold(point) for point in points]
    if not points or measure.bench is None:
        return None
    if all(one is None for one in cold):
        return "Whether the files were out of memory could not be verified here."
    if all(cold):
        names = "were forgotten, too" if measure.bench.setting.drops_names else "may have been"
        return (
            "Before each cold epoch no page of the files was in memory (mincore); their names and "
            f"inodes {names}."
        )
    worst = max(points, key=lambda p: p.resident or 0.0)
    return sentence(
        f"cold is not cold here: up to {percent(worst.resident or 0, 0)} of the pages of "
        f"{PHRASES[worst.cell.format]} stayed in memory although the system was asked to drop them"
    )


FORMATS_RULE = (
    "Flat out: nothing is computed between batches. The best way of each format, where it is ahead "
    "of every other in each round, by more than "
    f"{percent(SAME_WITHIN, 0)}."
)
