"""What a reader should take away of a compression study, as sentences. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

from phalanx.report.answers import sentence
from phalanx.report.compression.material import MEMORY, NONE, CompressionCell, Material
from phalanx.report.compression.wording import bandwidth, spoken
from phalanx.report.findings import Sentence, Topic
from phalanx.report.wording import amount, joined, percent, points

SAME_WITHIN = 0.02  # steps closer than this are called equal
LINE_WITHIN = 0.15  # steps farther than this from the fitted line do not lie on one
NO_LINE = (
    " That is no line: the bandwidths above are guesses. Was the machine busy? "
    "Measure once more when it is quiet."
)


def findings(material: Material) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    topics = []
    for title, rule, answer in _QUESTIONS:
        sentences = tuple(Sentence(label=label, text=text) for label, text in answer(material))
        if sentences:
            topics.append(Topic(title=title, rule=rule, sentences=sentences))
    return tuple(topics)


def headline(material: Material) -> str:
    """The fastest that holds the accuracy, on the slowest link where one is, and whether any pays
    in memory."""
    place = nearest_gigabit(material) or MEMORY
    best = fastest(material, place)
    if best is None:
        return "No run came to its end yet."
    factor = material.faster(best.compressor, place)
    if best.compressor == NONE or factor is None:
        return f"In {place} nothing is faster than gradients as they are."
    where = "in shared memory" if place == MEMORY else f"on a link of {place}"
    return sentence(
        f"{spoken(best.compressor)} makes steps {where} {factor:.1f} times as fast and holds the "
        "accuracy"
    )


def nearest_gigabit(material: Material) -> str | None:
    """The link nearest to 1 Gbit/s."""
    rated = [
        (abs(math.log(cell.bandwidth_bytes_per_s / 125e6)), cell.place)
        for cell in material.cells
        if cell.bandwidth_bytes_per_s
    ]
    return min(rated)[1] if rated else None


def fastest(material: Material, place: str) -> CompressionCell | None:
    """Of those that hold the accuracy, or of which nothing is known."""
    cells = [c for c in material.cells if c.place == place]
    held = [c for c in cells if material.holds_accuracy(c.compressor) is not False]
    return min(held, key=lambda cell: cell.step_s, default=None)


def _by_place(material: Material) -> list[tuple[str, str]]:
    told = []
    for place in material.places:
        ratios = {
            spoken(c): factor
            for c in material.compressors
            if c != NONE and (factor := material.faster(c, place))
        }
        if not ratios:
            continue
        better = {name: f for name, f in ratios.items() if f > 1 + SAME_WITHIN}
        if not better:
            told.append((place, "No compressor makes a step shorter."))
            continue
        order = sorted(better, key=lambda name: -better[name])
        text = joined([f"{name} {better[name]:.2f}" for name in order])
        rest = [name for name in ratios if name not in better]
        end = f"; {joined(rest)} not" if rest else ""
        told.append((place, sentence(f"times as fast as without: {text}{end}")))
    return told


def _pays(material: Material) -> list[tuple[str, str]]:
    fit = material.fit
    if fit is None:
        return []
    told = []
    for compressor in material.compressors:
        if compressor == NONE or compressor not in fit.bases_s or NONE not in fit.bases_s:
            continue
        below = material.pays_below(compressor)
        added_ms = 1e3 * (fit.bases_s[compressor] - fit.bases_s[NONE])
        if below is None:
            text = "pays on no link: it sends no fewer bytes"
        elif math.isinf(below):
            text = f"pays on any link: a step without its sending takes {-added_ms:.2f} ms less"
        else:
            text = f"pays below {bandwidth(below)}: it costs {added_ms:.2f} ms of coding a step"
        told.append((spoken(compressor), sentence(text)))
    if told:
        told.append(
            (
                "the fit",
                f"Steps are within {percent(fit.worst, 0)} of base + {fit.slope:.2f} "
                "\N{MULTIPLICATION SIGN} bytes \N{DIVISION SIGN} bandwidth."
                + (NO_LINE if fit.worst > LINE_WITHIN else ""),
            )
        )
    return told


def _accuracy(material: Material) -> list[tuple[str, str]]:
    plain = material.accuracy(NONE)
    if plain is None:
        return []
    told = [
        (
            spoken(NONE),
            f"{percent(plain.mean, 2)} over {plain.seeds} seeds, from {percent(plain.low, 2)} to "
            f"{percent(plain.high, 2)}.",
        )
    ]
    for compressor in material.compressors:
        own = material.accuracy(compressor)
        if compressor == NONE or own is None:
            continue
        verdict = "within" if material.holds_accuracy(compressor) else "below"
        told.append(
            (
                spoken(compressor),
                f"{percent(own.mean, 2)}, {points(own.mean - plain.mean)} points: {verdict} the "
                "spread of the seeds.",
            )
        )
    return told


def _bytes(material: Material) -> list[tuple[str, str]]:
    told = []
    for compressor in material.compressors:
        sent, factor = material.sent_bytes(compressor), material.smaller(compressor)
        if sent is None:
            continue
        text = f"{amount(sent)} a step"
        if compressor != NONE and factor:
            text += f", {factor:.3g} times fewer"
        told.append((spoken(compressor), sentence(text)))
    return told


_QUESTIONS: tuple[tuple[str, str, Callable[[Material], list[tuple[str, str]]]], ...] = (
    (
        "How much faster is a step, and where?",
        f"Medians; less than {SAME_WITHIN:.0%} faster counts as not.",
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
        "A mean over the seeds that is not below the worst seed without compression counts as "
        "within.",
        _accuracy,
    ),
    ("How many bytes does the busiest rank send?", "Counted, not computed.", _bytes),
)
