"""Order of the actions of each rank of a pipeline, for each schedule. Pure; needs no PyTorch.

The orders are those of torch.distributed.pipelining; tests hold them against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from phalanx.parallel.pipeline.layout import PipelineLayout, num_rounds

Kind = Literal["forward", "backward", "input gradient", "weight gradient"]
"""A backward pass as a whole, or in two: what the previous stage waits for first (the gradient of
the input), what nobody waits for when there is time (those of the weights)."""


class Action(NamedTuple):
    """One action of a rank."""

    kind: Kind
    stage: int
    micro_batch: int


def orders_of(layout: PipelineLayout) -> list[list[Action]]:
    """Return each rank's actions in the order in which it does them."""
    return [list(order_of(layout, rank)) for rank in range(layout.num_ranks)]


def order_of(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    match layout.schedule:
        case "gpipe":
            return gpipe(layout, rank)
        case "1f1b":
            return one_forward_one_backward(layout, rank)
        case "interleaved":
            return interleaved(layout, rank)
        case "zero-bubble":
            return zero_bubble_v(layout, rank) if layout.is_v else zero_bubble(layout, rank)


def forward_order(layout: PipelineLayout, rank: int, num_pieces: int) -> Iterator[tuple[int, int]]:
    """Yield (stage, micro-batch) of forward passes alone, in the order in which `rank` does them.

    As many micro-batches as there are ranks go through each of its stages before the next, which
    keeps every rank busy. In this order no rank waits for what comes after it.
    """
    for start in range(0, num_pieces, layout.num_ranks):
        for stage in layout.stages_of(rank):
            for piece in range(start, min(start + layout.num_ranks, num_pieces)):
                yield stage, piece


def gpipe(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    """Yield all forward, then all backward actions: every micro-batch's activations are stored.

    Source: Huang et al. 2019, "GPipe".
    """
    for micro_batch in range(layout.micro_batches):
        yield Action("forward", rank, micro_batch)
    for micro_batch in range(layout.micro_batches):
        yield Action("backward", rank, micro_batch)


def one_forward_one_backward(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    """Yield 1F1B: as GPipe in time, but with the activations of fewer micro-batches.

    A rank stores those of no more micro-batches than there are ranks from it to the last.

    Source: Narayanan et al. 2021, arXiv:2006.09503 (PipeDream-Flush).
    """
    ahead = min(layout.micro_batches, layout.num_ranks - 1 - rank)
    for micro_batch in range(layout.micro_batches + ahead):
        if micro_batch < layout.micro_batches:
            yield Action("forward", rank, micro_batch)
        if micro_batch >= ahead:
            yield Action("backward", rank, micro_batch - ahead)


def interleaved(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    """Yield 1F1B on several shorter stages a rank.

    The pipeline fills and drains that much faster, and that much more is sent.

    Source: Narayanan et al. 2021, arXiv:2104.04473.
    """
    per_round = layout.micro_batches // num_rounds(layout)
    total = layout.stages_per_rank * layout.micro_batches
    ahead = (layout.stages_per_rank - 1) * per_round + 2 * (layout.num_ranks - 1 - rank)
    stages = layout.stages_of(rank)
    forwards, backwards = _rounds(layout, stages), _rounds(layout, stages[::-1])
    for _ in range(min(ahead, total)):
        yield Action("forward", *next(forwards))
    for stage, micro_batch in forwards:
        yield Action("forward", stage, micro_batch)
        yield Action("backward", *next(backwards))
    for stage, micro_batch in backwards:
        yield Action("backward", stage, micro_batch)


def zero_bubble(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    """Yield ZB-H1: 1F1B, of one stage a rank or several, with weight gradients in the idle time.

    Its memory is that of 1F1B.

    Source: Qi et al. 2024, arXiv:2401.10241.
    """
    per_round = layout.micro_batches // num_rounds(layout)
    total = layout.stages_per_rank * layout.micro_batches
    ahead = min(total, (layout.stages_per_rank - 1) * per_round + layout.num_ranks - 1 - rank)
    stages = layout.stages_of(rank)
    forwards, backwards = _rounds(layout, stages), _rounds(layout, stages[::-1])
    weights = _rounds(layout, stages[::-1])
    for _ in range(ahead):
        yield Action("forward", *next(forwards))
    for number, (stage, micro_batch) in enumerate(backwards):
        if number < total - ahead:
            yield Action("forward", *next(forwards))
        yield Action("input gradient", stage, micro_batch)
        if number >= rank:
            yield Action("weight gradient", *next(weights))
    for stage, micro_batch in weights:
        yield Action("weight gradient", stage, micro_batch)


def zero_bubble_v(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    """Yield ZB-V: two stages a rank in the shape of a V.

    It has no bubble at all while the pipeline is full, if the forward pass and both halves of the
    backward pass take equally long.

    Source: Qi et al. 2024, arXiv:2401.10241, section 6.
    """
    for action in _full_v(layout, rank):
        if action.micro_batch < layout.micro_batches:
            yield action


def _full_v(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    """Yield the same with as many micro-batches as fill the pipeline."""
    ranks = layout.num_ranks
    total = max(2 * ranks - 1, layout.micro_batches)
    down, up = layout.stages_of(rank)
    done: Counter[tuple[Kind, int]] = Counter()

    def act(kind: Kind, stage: int) -> Action:
        done[kind, stage] += 1
        return Action(kind, stage, done[kind, stage] - 1)

    def backward(stage: int) -> Iterator[Action]:
        yield act("input gradient", stage)
        yield act("weight gradient", stage)

    for _ in range(2 * (ranks - rank) - 1):
        yield act("forward", down)
    for _ in range(rank):
        yield act("forward", up)
        yield act("forward", down)
    for _ in range(ranks - rank):
        yield act("forward", up)
        yield from backward(up)
    while done["forward", up] < done["forward", down] or done["forward", down] < total:
        if done["forward", down] < total:
            yield act("forward", down)
        yield from backward(down)
        yield act("forward", up)
        yield from backward(up)
    for _ in range(rank):
        yield act("input gradient", down)
        yield act("input gradient", up)
    for _ in range(ranks - rank):
        yield from backward(down)
    for stage in (up, down):
        while done["weight gradient", stage] < done["input gradient", stage]:
            yield act("weight gradient", stage)


def _rounds(layout: PipelineLayout, stages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (stage, micro-batch): a round through each of `stages`, then the next round."""
    per_round = layout.micro_batches // num_rounds(layout)
    for start in range(0, layout.micro_batches, per_round):
        for stage in stages:
            for micro_batch in range(start, start + per_round):
                yield stage, micro_batch
