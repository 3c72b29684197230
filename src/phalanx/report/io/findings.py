"""Findings of data loading: of a measurement, and of a study of several. Pure.

A function of a measurement and cache returns None where the records have no data for its sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from phalanx.records.io import Cache
from phalanx.report.content import Topic, make_topic, told
from phalanx.report.format import (
    amount,
    duration,
    joined,
    percent,
    sentence,
    three_digits,
)
from phalanx.report.io.comparison import (
    LOADERS,
    PHRASES,
    LoaderComparison,
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
from phalanx.report.study_content import NOTHING_COMPLETED

NO_BREAK = "\N{NO-BREAK SPACE}"
SAME_WITHIN = 0.05
SentenceFunction = Callable[[IoMeasure, Cache], str | None]
Questions = Sequence[tuple[str, str, tuple[SentenceFunction, ...]]]


def findings(measure: IoMeasure) -> tuple[Topic, ...]:
    """The topics that a measurement has something to say about."""
    topics = _topics(_OF_A_MEASUREMENT, [measure], lambda _, cache: cache.capitalize())
    return told(*topics, conditions([measure]))


def study_findings(study: IoStudy) -> tuple[Topic, ...]:
    """The topics that a study has something to say about."""
    topics = _topics(_OF_A_STUDY, study.profiles, lambda measure, cache: f"{measure.name}, {cache}")
    return told(*topics, conditions(study.runs))


def _topics(
    questions: Questions, measures: Sequence[IoMeasure], label: Callable[[IoMeasure, Cache], str]
) -> Iterable[Topic]:
    for title, rule, functions in questions:
        sentences = [
            (label(measure, cache), make_sentence(measure, cache))
            for measure in measures
            for cache in caches_of(measure.points)
            for make_sentence in functions
        ]
        yield make_topic(title, rule, sentences)


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
            return sentence(f"{PHRASES[found.cell.format]}: {_rate(found)}").rstrip(".")
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


def utilisation(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the formats that keep the accelerator busy, and those that do not."""
    floor = floor_of(measure)
    points = [p for p in own(in_cache(measure.paced, cache)) if p.utilisation is not None]
    best = busiest(points).values()
    parts = []
    for words, some in (
        (f"reach the floor of {percent(floor, 0)}", [p for p in best if busy(p) >= floor]),
        (f"stay below {percent(floor, 0)}", [p for p in best if busy(p) < floor]),
    ):
        if some:
            shares = [f"{PHRASES[p.cell.format]} ({percent(busy(p), 1)})" for p in some]
            parts.append(f"{joined(shares)} {words}")
    return sentence("; ".join(parts)) if parts else None


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


def fastest_format(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the fastest format, and its gain over the others, with the range over the rounds."""
    points = best_of_each_format(measure.flat, cache, fewest_ranks(measure))
    best = fastest(points)
    if best is None or len(points) < 2:
        return None
    others = [compare_loaders(best, point) for point in points if point is not best]
    texts = [
        f"{d.gain:.2f} times ({d.low:.2f} to {d.high:.2f}) those of {PHRASES[d.theirs.cell.format]}"
        for d in sorted(others, key=lambda d: d.gain)
    ]
    return sentence(
        f"most samples/s come from {PHRASES[best.cell.format]}, {three_digits(best.samples_per_s)} "
        f"with {how(best.cell)}: {joined(texts)}"
    )


def against_read(measure: IoMeasure, cache: Cache) -> str | None:
    """The loader's own cost over a plain read of the same files."""
    texts = [
        f"{PHRASES[point.cell.format]} {1 / compare_loaders(point, other).gain:.2f}"
        for point in best_of_each_format(measure.flat, cache, fewest_ranks(measure))
        for other in rivals(measure, point, "read")[:1]
    ]
    if not texts:
        return None
    return sentence(f"times the time of one process that only reads the files: {joined(texts)}")


def against_torch(measure: IoMeasure, cache: Cache, loader: str = "torch") -> str | None:
    """Compare with PyTorch's DataLoader on the same shards, each at its best."""
    texts = []
    for point in best_of_each_format(measure.flat, cache, fewest_ranks(measure)):
        best = fastest(rivals(measure, point, loader))
        if best is not None:
            texts.append(
                f"{_comparison_text(compare_loaders(point, best))} on {PHRASES[point.cell.format]} "
                f"({_rate(point)} with {how(point.cell)} against {_rate(best)} with "
                f"{how(best.cell)})"
            )
    return sentence(f"Phalanx is {joined(texts)}") if texts else None


def _comparison_text(found: LoaderComparison) -> str:
    theirs = LOADERS[found.theirs.cell.loader]
    if abs(found.gain - 1) <= SAME_WITHIN:
        return f"as fast as {theirs}"
    if found.gain > 1:
        return f"{found.gain:.1f} times as fast as {theirs}"
    return f"{1 / found.gain:.1f} times slower than {theirs}"


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
            f"at {step} a step {name} with {how(chosen.cell)} suffice: busy {reached}, "
            f"floor {floor}"
        )
    return sentence(
        f"at {step} a step nothing reaches {floor}; the most is {reached}, with {name}, "
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
        texts.append(f"{name} below {balance} a step ({measured})")
    return sentence(f"I/O-bound: {joined(texts)}") if texts else None


def more_readers(measure: IoMeasure, cache: Cache) -> str | None:
    return _more(measure, cache, "readers", lambda point: point.cell.readers)


def more_depth(measure: IoMeasure, cache: Cache) -> str | None:
    return _more(measure, cache, "batches ahead", lambda point: point.cell.depth)


def _more(
    measure: IoMeasure, cache: Cache, word: str, value_of: Callable[[IoPoint], int]
) -> str | None:
    """Return the gain of larger values, with the other options at their best, in the fastest
    format."""
    best = fastest(best_of_each_format(measure.flat, cache))
    if best is None:
        return None
    rates: dict[int, float] = {}
    for point in own(in_cache(measure.flat, cache)):
        if point.cell.format == best.cell.format and point.cell.readers:
            value = value_of(point)
            rates[value] = max(rates.get(value, 0.0), point.samples_per_s)
    if len(rates) < 2:
        return None
    least, *larger = sorted(rates)
    name, gains = (
        PHRASES[best.cell.format],
        {value: rates[value] / rates[least] for value in larger},
    )
    if max(gains.values()) <= 1 + SAME_WITHIN:
        return sentence(f"{name}: more than {least} {word} gain nothing")
    texts = [f"{value} {word} {gain:.2f} times" for value, gain in gains.items()]
    return sentence(f"{name}: {joined(texts)} the samples/s of {least}")


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


_FORMATS_RULE = (
    "Flat out: nothing is computed between batches. The best way of each format; of ratios within "
    "a round the median, and the smallest and the largest."
)
_OF_A_MEASUREMENT: Questions = (
    (
        "Is the accelerator kept busy?",
        "Utilisation: compute ÷ total time of an epoch, median over epochs; the best way of each "
        "format.",
        (utilisation, bound),
    ),
    ("Which format?", _FORMATS_RULE, (fastest_format,)),
    (
        "What does the loader cost?",
        "The same files, read from the first to the last byte by one process, 1 MB at a time, as "
        "dd does.",
        (against_read,),
    ),
    (
        "Against PyTorch's DataLoader",
        "On the same shards and in turn; its workers stay and were started before the clock.",
        (against_torch, lambda measure, cache: against_torch(measure, cache, "torch-batched")),
    ),
)
_OF_A_STUDY: Questions = (
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
        (bounds, bound),
    ),
    ("Which format?", _FORMATS_RULE, (fastest_format,)),
    (
        "More readers, more batches ahead",
        f"Flat out, in the fastest format; gains below {percent(SAME_WITHIN, 0)} are none.",
        (more_readers, more_depth),
    ),
)
