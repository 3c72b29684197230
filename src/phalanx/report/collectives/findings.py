"""Sentences about measured collectives: who wins, by how much, how far from the floor. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.report.answers import sentence
from phalanx.report.collectives.comparison import SPOKEN, Duel, Subject, duels, reigns
from phalanx.report.collectives.measures import BenchMeasure, Point
from phalanx.report.findings import Sentence, Topic
from phalanx.report.wording import duration, joined, percent, size

TOLD_SIZES = (64 * 2**10, 2**20, 16 * 2**20)
FLOOR_FROM_BYTES = 2**20
HEADLINE_BYTES = 2**20
SAME_WITHIN = 0.05  # times closer than this are called equal


def findings(subjects: Sequence[Subject], measures: Sequence[BenchMeasure]) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    topics = []
    for title, rule, answer in _QUESTIONS:
        found = [(subject.label, answer(subject)) for subject in subjects]
        sentences = tuple(Sentence(label=_upper(label), text=t) for label, t in found if t)
        topics.append(Topic(title=title, rule=rule, sentences=sentences))
    topics.append(_missing(measures))
    topics.append(_not_completed(measures))
    return tuple(topic for topic in topics if topic.sentences)


def headline(subjects: Sequence[Subject]) -> str:
    """The one sentence that the page begins with: ours against the best of all others."""
    found = [(subject, duel) for subject in subjects for duel in [told_duel(subject)] if duel]
    if not found:
        return "Nothing to compare was measured yet" if not subjects else _alone(subjects[0])
    # Of several MPI libraries the hardest rival stands in the headline.
    first = subjects[0].collective
    subject, duel = min(
        ((s, d) for s, d in found if s.collective == first or len(found) == 1),
        key=lambda pair: pair[1].gain,
        default=found[0],
    )
    what = SPOKEN[subject.collective]
    if duel.num_bytes:
        what = f"{what} of {size(duel.num_bytes)}"
    where = f"on {subject.ranks} ranks"
    return sentence(f"{what} {where}: {duel.ours.label} is {compared(duel)}").rstrip(".")


def told_duel(subject: Subject) -> Duel | None:
    """The duel at 1 MB, or at the size nearest to it."""
    return min(duels(subject), key=lambda d: abs(d.num_bytes - HEADLINE_BYTES), default=None)


def compared(duel: Duel) -> str:
    """5.1 times as fast as Open MPI."""
    if abs(duel.gain - 1) <= SAME_WITHIN:
        return f"as fast as {duel.theirs.label}"
    if duel.gain > 1:
        return f"{duel.gain:.1f} times as fast as {duel.theirs.label}"
    return f"{1 / duel.gain:.1f} times slower than {duel.theirs.label}"


def best_against_rest(subject: Subject) -> str | None:
    told = _told(duels(subject))
    if not told:
        return None
    parts = [
        f"{_at(duel.num_bytes)}{duel.ours.label} takes {duration(duel.ours.median_s)}, "
        f"{compared(duel)} ({duration(duel.theirs.median_s)})"
        for duel in told
    ]
    return sentence("; ".join(parts))


def crossings(subject: Subject) -> str | None:
    """Who is the fastest from which size to which."""
    if subject.sizes == (0,) or len({point.path for point in subject.points}) < 2:
        return None
    parts = reigns(subject)
    if len(parts) == 1:
        return sentence(f"{parts[0][0]} is the fastest at every size")
    told = [f"{label} {_span(low, high)}" for label, low, high in parts]
    return sentence(f"the fastest is {joined(told)}")


def private_tensors(subject: Subject) -> str | None:
    """torch.distributed on our backend against its others, tensors where PyTorch put them."""
    ours = {p.num_bytes: p for p in subject.points if p.path == "torch"}
    gloo = {p.num_bytes: p for p in subject.points if p.path == "gloo"}
    gains = {n: gloo[n].median_s / ours[n].median_s for n in sorted(set(ours) & set(gloo))}
    if not gains:
        return None
    lowest, highest = min(gains, key=lambda n: gains[n]), max(gains, key=lambda n: gains[n])
    text = f"dist.{subject.collective} on backend mpi is {gains[lowest]:.1f}"
    if lowest == highest:
        return sentence(f"{text} times as fast as on Gloo")
    return sentence(
        f"{text} ({size(lowest)}) to {gains[highest]:.1f} ({size(highest)}) times as fast as on "
        "Gloo"
    )


def distance_from_floor(subject: Subject) -> str | None:
    """The fastest path against what memory and flags of this machine allow."""
    large = [subject.at(n)[0] for n in subject.sizes if n >= FLOOR_FROM_BYTES]
    best = large or [subject.at(n)[0] for n in subject.sizes][-1:]
    ratios = [(p.times_floor, p) for p in best if p.times_floor is not None]
    if not ratios:
        return None
    low, high = min(ratios, key=_ratio), max(ratios, key=_ratio)
    what = joined(list(dict.fromkeys(point.label for point in best)))
    if not high[1].num_bytes:
        return sentence(f"{what} takes {high[0]:.2f} times the floor")
    where = (
        f"from {size(best[0].num_bytes)} up" if len(best) > 1 else f"at {size(best[0].num_bytes)}"
    )
    if len(ratios) == 1:
        reached = percent(1 / high[0], 0)
        return sentence(f"{where} {what} takes {high[0]:.2f} times the floor ({reached} of it)")
    return sentence(
        f"{where} {what} takes {low[0]:.2f} to {high[0]:.2f} times the floor "
        f"(the most at {size(high[1].num_bytes)}: {percent(1 / high[0], 0)} of it is reached)"
    )


def correctness(subject: Subject) -> str:
    """Whether every result was right."""
    calls = sum(len(point.times_s) for point in subject.points)
    bad = [point for point in subject.points if point.wrong]
    if not bad:
        return f"All results of {calls:,} timed calls were right, every element on every rank."
    told = [f"{p.label}{_of(p.num_bytes)} ({p.wrong:,} elements)" for p in bad]
    return sentence(f"wrong results: {joined(told)}")


def _told(found: Sequence[Duel]) -> list[Duel]:
    """At the smallest and the largest size, and at those of TOLD_SIZES that are there."""
    if not found:
        return []
    ends = {found[0].num_bytes, found[-1].num_bytes}
    return [duel for duel in found if duel.num_bytes in ends or duel.num_bytes in TOLD_SIZES]


def _missing(measures: Sequence[BenchMeasure]) -> Topic:
    several = len(measures) > 1
    told = [
        Sentence(
            label=f"{measure.name}: {obstacle.label}" if several else obstacle.label,
            text=sentence(f"{SPOKEN[obstacle.collective]}: {obstacle.reason}").replace("..", "."),
        )
        for measure in measures
        for obstacle in measure.obstacles
    ]
    return Topic(
        title="Not measured",
        rule="Paths that were asked for and cannot be used here, with the reason.",
        sentences=tuple(told),
    )


def _not_completed(measures: Sequence[BenchMeasure]) -> Topic:
    told = [
        Sentence(label=measure.name, text=sentence(f"{measure.status}: {measure.error or '–'}"))
        for measure in measures
        if measure.status != "completed"
    ]
    return Topic(
        title="Not completed",
        rule="What these measured before they ended is shown all the same.",
        sentences=tuple(told),
    )


def _alone(subject: Subject) -> str:
    fastest = subject.at(subject.sizes[-1])[0]
    what = f"{SPOKEN[subject.collective]}{_of(fastest.num_bytes)} on {subject.ranks} ranks"
    return sentence(f"{what}: {duration(fastest.median_s)} with {fastest.label}").rstrip(".")


def _ratio(pair: tuple[float, Point]) -> float:
    return pair[0]


def _at(num_bytes: int) -> str:
    return f"at {size(num_bytes)} " if num_bytes else ""


def _of(num_bytes: int) -> str:
    return f" of {size(num_bytes)}" if num_bytes else ""


def _span(low: int, high: int) -> str:
    return f"at {size(low)}" if low == high else f"from {size(low)} to {size(high)}"


def _upper(label: str) -> str:
    """All-reduce, Open MPI 5.0.11: the first letter only, names keep theirs."""
    return f"{label[0].upper()}{label[1:]}"


_QUESTIONS: tuple[tuple[str, str, Callable[[Subject], str | None]], ...] = (
    (
        "Phalanx against the rest",
        "The fastest path of Phalanx and the fastest of the others at each size, by their medians "
        "in the same run.",
        best_against_rest,
    ),
    (
        "Who wins where",
        "The path with the smallest median at each size that was measured.",
        crossings,
    ),
    (
        "Unmodified PyTorch scripts",
        "torch.distributed on tensors where PyTorch put them, backend mpi against Gloo.",
        private_tensors,
    ),
    (
        "Distance from the floor",
        "The floor: the bytes that must move ÷ the bandwidth of copying at that working set, and "
        "a flag's way there and back, all measured in the same run.",
        distance_from_floor,
    ),
    (
        "Correctness",
        "Buffers are rewritten before every call, results checked after it.",
        correctness,
    ),
)
