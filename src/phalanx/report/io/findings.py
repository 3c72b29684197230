"""Findings of a measurement of data loading. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.records.io import Cache
from phalanx.report.finding_sentences import sentence
from phalanx.report.format import joined, percent
from phalanx.report.io import finding_sentences
from phalanx.report.io.comparison import (
    PHRASES,
    best_of_each_format,
    caches_of,
    fastest,
    fewest_ranks,
    floor_of,
    own,
)
from phalanx.report.io.measures import IoMeasure
from phalanx.report.topic import Sentence, Topic

NO_BREAK = "\N{NO-BREAK SPACE}"
SentenceFunction = Callable[[IoMeasure, Cache], str | None]

# (title, rule, functions)
_QUESTIONS: tuple[tuple[str, str, tuple[SentenceFunction, ...]], ...] = (
    (
        "Is the accelerator kept busy?",
        "Utilisation: compute ÷ total time of an epoch, median over epochs; the best way of each "
        "format.",
        (finding_sentences.utilisation, finding_sentences.bound, finding_sentences.first_batch),
    ),
    (
        "Which format?",
        "Flat out: nothing is computed between batches. The best way of each format; medians, and "
        "of ratios within a round the median and the range.",
        (finding_sentences.fastest_format, finding_sentences.small_files),
    ),
    (
        "What does the loader cost?",
        "The same files, read from the first to the last byte by one process, 1 MB at a time, as "
        "dd does.",
        (finding_sentences.against_read, finding_sentences.against_kept_read),
    ),
    (
        "Against PyTorch's DataLoader",
        "On the same shards and in turn; its workers stay and were started before the clock.",
        (
            finding_sentences.against_torch,
            lambda measure, cache: finding_sentences.against_torch(measure, cache, "torch-batched"),
        ),
    ),
    (
        "With more ranks",
        "Each rank reads data of its own; samples/s of all together.",
        (finding_sentences.weak_scaling,),
    ),
)


def findings(measures: Sequence[IoMeasure]) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    topics = []
    for title, rule, functions in _QUESTIONS:
        sentences = [
            Sentence(label=label_of(measure, cache, measures), text=text)
            for measure in measures
            for cache in caches_of(measure.points)
            for make_sentence in functions
            if (text := make_sentence(measure, cache))
        ]
        topics.append(Topic(title=title, rule=rule, sentences=tuple(sentences)))
    topics.append(conditions(measures))
    return tuple(topic for topic in topics if topic.sentences)


def label_of(measure: IoMeasure, cache: Cache, measures: Sequence[IoMeasure]) -> str:
    """Return the label of a sentence: the cache, and the measurement where there are several."""
    return cache.capitalize() if len(measures) == 1 else f"{measure.name}, {cache}"


def conditions(measures: Sequence[IoMeasure]) -> Topic:
    """Report scaled compute times, caches that were not cold, and what was not measured."""
    runs_by_text: dict[str, list[str]] = {}
    for measure in measures:
        for text in conditions_of(measure):
            runs_by_text.setdefault(text, []).append(measure.name)
    sentences = [
        # A sentence that holds for all measurements is printed once.
        Sentence(label="" if len(names) == len(measures) else joined(names), text=text)
        for text, names in runs_by_text.items()
    ]
    return Topic(
        title="What this holds for",
        rule="An accelerator is emulated: this process sleeps while one would compute.",
        sentences=(*sentences, *_unproven(measures)),
    )


def conditions_of(measure: IoMeasure) -> list[str]:
    texts = []
    if measure.bench:
        if cold := finding_sentences.cold_cache(measure):
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


def _unproven(measures: Sequence[IoMeasure]) -> list[Sentence]:
    where = [m.bench.storage for m in measures if m.bench]
    kinds = list(dict.fromkeys(s.file_system or "an unknown file system" for s in where))
    if not kinds:
        return []
    text = (
        f"measured on {joined(kinds)}; neither another file system, such as one over a network, "
        "nor the way from memory to a GPU was measured"
    )
    return [Sentence(label="", text=sentence(text))]


def headline(measures: Sequence[IoMeasure]) -> str:
    """The one sentence that the page begins with."""
    for measure in measures:
        points = [p for p in own(measure.paced) if p.utilisation is not None]
        if not points or measure.bench is None:
            continue
        best = max(points, key=lambda p: p.utilisation or 0.0)
        reached = percent(best.utilisation or 0.0, 1)
        name = measure.bench.setting.profile.name
        accelerator = measure.bench.setting.accelerator.upper()
        verb = "is busy" if (best.utilisation or 0) >= floor_of(measure) else "is only busy"
        return (
            f"{capital(PHRASES[best.cell.format])} from {memory(best.cell.cache)}: an emulated "
            f"{accelerator} {verb} {reached} of the time with {name}"
        ).replace(" %", f"{NO_BREAK}%")
    for measure in measures:
        caches = caches_of(measure.flat)
        points = (
            best_of_each_format(measure.flat, caches[0], fewest_ranks(measure)) if caches else []
        )
        if found := fastest(points):
            return f"{capital(PHRASES[found.cell.format])}: {finding_sentences.rate(found)}"
    return "No way of loading was measured to its end yet"


def memory(cache: Cache) -> str:
    return "memory" if cache == "warm" else "the disk"


def capital(text: str) -> str:
    """Capitalise the first word of a sentence: HDF5 stays as it is."""
    return f"{text[0].upper()}{text[1:]}"
