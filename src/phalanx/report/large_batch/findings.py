"""What a large-batch study has shown, in sentences that are made of its numbers. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from phalanx.report.comparison import Spread, counted
from phalanx.report.findings import Sentence, Topic, not_completed_topic
from phalanx.report.large_batch.charts import mean_loss
from phalanx.report.large_batch.material import BatchCell, Material, Reached
from phalanx.report.wording import joined, percent, points, seconds

UNSTABLE_RISE = 1.1
"""A training loss that rises by more than this factor from an epoch to the next is unstable."""


def headline(material: Material) -> str:
    """The one sentence that the page begins with."""
    baseline = material.baseline
    if baseline is None:
        return "The recipe of the smallest batch has not been run to its end yet"
    furthest = furthest_by_remedy(material)
    if not furthest:
        return f"No remedy holds the accuracy of batch {baseline.batch_size:,} at a larger one"
    best = max(furthest, key=lambda cell: cell.batch_size)
    same = [cell.remedy for cell in furthest if cell.batch_size == best.batch_size]
    verb = "hold" if len(same) > 1 else "holds"
    return (
        f"{joined(_capital(same))} {verb} the accuracy of batch {baseline.batch_size:,} up to "
        f"batch {best.batch_size:,}"
    )


def findings(material: Material) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    topics = (
        Topic(
            title="Which batch holds the accuracy",
            rule="A batch holds it when its mean over the seeds is no worse than the worst seed of "
            "the base recipe at the smallest batch (with one seed: less than half a percentage "
            "point below it) and no seed diverged.",
            sentences=tuple(_holds(material)),
        ),
        Topic(
            title="What a large batch costs",
            rule="Means over the seeds that came to their end, against the base recipe at the "
            "smallest batch.",
            sentences=tuple(_costs(material)),
        ),
        Topic(
            title="Where training is unstable",
            rule="A run is unstable when it diverged, or when its training loss rose by more than "
            f"{percent(UNSTABLE_RISE - 1, 0)} from an epoch to the next.",
            sentences=tuple(_unstable(material)),
        ),
        Topic(
            title="Warm-up",
            rule="Linear scaling with and without it: accuracy and training loss of the last "
            "epoch, means over the seeds.",
            sentences=tuple(_warm_up(material)),
        ),
        Topic(
            title="Generalisation gap",
            rule="Accuracy on the training data less that on the validation data, in the last "
            "epoch.",
            sentences=tuple(_gaps(material)),
        ),
        Topic(
            title="Time to the target",
            rule="To the next half percentage point below the worst seed of the base recipe.",
            sentences=tuple(_times(material)),
        ),
        not_completed_topic(material.measures),
    )
    return tuple(topic for topic in topics if topic.sentences)


def holds(cell: BatchCell, baseline: BatchCell) -> bool:
    """Whether it is as accurate as the baseline, as its rule says."""
    if cell.accuracy is None or baseline.accuracy is None or cell.diverged:
        return False
    return cell.accuracy.mean >= least(baseline.accuracy)


def least(baseline: Spread) -> float:
    return baseline.low if baseline.seeds > 1 else baseline.mean - 0.005


def furthest_by_remedy(material: Material) -> list[BatchCell]:
    """Of each remedy the largest batch that holds the accuracy, if one beyond the first does."""
    if material.baseline is None:
        return []
    found = []
    for remedy in material.remedies:
        held = [
            cell
            for cell in material.cells
            if cell.remedy == remedy
            and cell.batch_size > material.baseline.batch_size
            and holds(cell, material.baseline)
        ]
        found += held[-1:]
    return found


def _holds(material: Material) -> list[Sentence]:
    baseline = material.baseline
    if baseline is None or baseline.accuracy is None:
        return []
    furthest = {cell.remedy: cell for cell in furthest_by_remedy(material)}
    sentences = [Sentence(label=baseline.label, text=f"{_spread(baseline.accuracy)}.")]
    for remedy in material.remedies:
        tried = [c for c in material.cells if c.remedy == remedy and c is not baseline]
        larger = [cell for cell in tried if cell.batch_size > baseline.batch_size]
        if not larger:
            continue
        if (cell := furthest.get(remedy)) is None or cell.accuracy is None:
            text = f"at none of the batches tried, {_sizes(larger)}."
        else:
            text = f"up to batch {cell.batch_size:,}: {_spread(cell.accuracy)}"
            gone = [c for c in larger if c.batch_size < cell.batch_size and not holds(c, baseline)]
            text += f", though not at {_sizes(gone)}." if gone else "."
        sentences.append(Sentence(label=remedy, text=text))
    return sentences


def _costs(material: Material) -> list[Sentence]:
    """At each batch the worst and the best remedy."""
    baseline = material.baseline
    if baseline is None or baseline.accuracy is None:
        return []
    sentences = []
    for batch_size in material.batch_sizes[1:]:
        known = [(c.accuracy.mean, c) for c in material.at(batch_size) if c.accuracy]
        if not known:
            continue
        plain = material.cell("plain", batch_size)
        best_accuracy, best = max(known, key=lambda pair: pair[0])
        parts = []
        if plain and plain.accuracy and plain is not best:
            change = points(plain.accuracy.mean - baseline.accuracy.mean)
            parts.append(f"as it is the recipe comes to {percent(plain.accuracy.mean, 2)} "
                         f"({change} points)")  # fmt: skip
        change = points(best_accuracy - baseline.accuracy.mean)
        parts.append(f"best is {best.remedy} with {percent(best_accuracy, 2)} ({change} points)")
        sentences.append(Sentence(label=f"batch {batch_size:,}", text=f"{'; '.join(parts)}."))
    return sentences


def _unstable(material: Material) -> list[Sentence]:
    sentences = []
    for cell in material.cells:
        risen = [
            (run.name, epoch)
            for run in cell.runs
            if (epoch := _first_rise([e.train_loss for e in run.trained])) is not None
        ]
        parts = []
        if cell.diverged:
            parts.append(
                f"{len(cell.diverged)} of {counted(cell.num_seeds, 'seed')} diverged "
                f"({_where(cell)})"
            )
        if risen:
            first = min(epoch for _, epoch in risen)
            parts.append(
                f"the training loss of {len(risen)} of {counted(cell.num_seeds, 'seed')} rose, "
                f"first in epoch {first + 1}"
            )
        if parts:
            sentences.append(Sentence(label=cell.label, text=f"{'; '.join(parts)}."))
    return sentences


def _where(cell: BatchCell) -> str:
    """The steps at which its runs stopped, from their errors."""
    found = [re.search(r"\bstep (\d+):", run.error or "") for run in cell.diverged]
    steps = sorted(int(match[1]) for match in found if match)
    if not steps:
        return "gradients were not finite"
    return f"at step {steps[0]}" + (f" to {steps[-1]}" if steps[-1] > steps[0] else "")


def _first_rise(losses: Sequence[float | None]) -> int | None:
    for epoch, (before, after) in enumerate(itertools.pairwise(losses), 1):
        if before is not None and after is not None and after > UNSTABLE_RISE * before:
            return epoch
    return None


def _warm_up(material: Material) -> list[Sentence]:
    sentences = []
    for batch_size in material.batch_sizes:
        without = material.cell("linear", batch_size)
        with_it = material.cell("linear, warm-up", batch_size)
        if not (without and with_it):
            continue
        parts = [
            part
            for name, cell in (("with it", with_it), ("without", without))
            if (part := _ending(cell, name))
        ]
        if len(parts) == 2:
            text = f"linear scaling {'; '.join(parts)}."
            sentences.append(Sentence(label=f"batch {batch_size:,}", text=text))
    return sentences


def _ending(cell: BatchCell, name: str) -> str:
    if cell.accuracy is None:
        return f"{name}: every seed diverged"
    last = mean_loss(cell, max(run.trained[-1].epoch for run in cell.runs))
    loss = "" if last is None else f", training loss {last:.4g}"
    lost = f", {len(cell.diverged)} diverged" if cell.diverged else ""
    return f"{name}: {percent(cell.accuracy.mean, 2)}{loss}{lost}"


def _gaps(material: Material) -> list[Sentence]:
    """Of each remedy from the smallest to the largest batch at which it is known."""
    sentences = []
    for remedy in material.remedies:
        known = [(c.batch_size, c.gap.mean) for c in material.cells if c.remedy == remedy and c.gap]
        if len(known) < 2:
            continue
        (small, first), (large, last) = known[0], known[-1]
        text = f"{points(first)} points at batch {small:,}, {points(last)} at {large:,}."
        sentences.append(Sentence(label=remedy, text=text))
    return sentences


def _times(material: Material) -> list[Sentence]:
    if material.target is None:
        return []
    reached = [r for cell in material.cells if (r := material.reached(cell)).num_reached]
    whole = [r for r in reached if r.num_reached == r.cell.num_seeds]
    sentences = [
        Sentence(
            label=f"to {percent(material.target, 1)}",
            text=f"{len(whole)} of {len(material.cells)} combinations of remedy and batch reached "
            "it with every seed.",
        )
    ]
    for what, quantity in (("soonest", "trained_s"), ("in the fewest updates", "updates")):
        if whole:
            best = min(whole, key=lambda r: getattr(r, quantity))
            sentences.append(Sentence(label=what, text=f"{best.cell.label}: {_how_long(best)}."))
    baseline = material.baseline
    if baseline and whole:
        own = material.reached(baseline)
        if own.num_reached:
            sentences.append(Sentence(label=baseline.label, text=f"{_how_long(own)}."))
    return sentences


def _how_long(reached: Reached) -> str:
    assert reached.trained_s is not None and reached.epochs is not None
    return (
        f"{seconds(reached.trained_s)} of training, {reached.epochs:.1f} epochs, "
        f"{reached.updates:,.0f} updates"
    )


def _spread(accuracy: Spread) -> str:
    if accuracy.seeds == 1:
        return f"{percent(accuracy.mean, 2)} with one seed"
    return (
        f"{percent(accuracy.mean, 2)}, from {percent(accuracy.low, 2)} to "
        f"{percent(accuracy.high, 2)} over {accuracy.seeds} seeds"
    )


def _sizes(cells: Sequence[BatchCell]) -> str:
    return joined([f"{cell.batch_size:,}" for cell in cells])


def _capital(words: Sequence[str]) -> list[str]:
    return [words[0][:1].upper() + words[0][1:], *words[1:]]
