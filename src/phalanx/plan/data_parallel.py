"""Prediction of a data-parallel step: compute, sums of gradients, what backward hides. Pure.

The run's own choices are taken: buckets, algorithm of each sum, overlap with the backward pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from phalanx.comm.link import Link
from phalanx.gradients.buckets import (
    LAST_BUCKET_DIVISOR,
    assign_buckets,
    largest_bytes,
    overlaps_by_default,
)
from phalanx.plan.compute import ComputeTime
from phalanx.plan.events import ActionSpan, LaneAction, length_s, run_actions
from phalanx.plan.machine import SumTime
from phalanx.plan.profile import Gradient, ProgramProfile
from phalanx.plan.sums import (
    FALLBACK_BYTES_PER_S,
    Coding,
    LinkSpeed,
    PlannedSum,
    RankLayout,
    coded,
    plan_sum,
)

COMPUTE, NETWORK = "compute", "network"
EVEN_GRADIENTS = 32
"""Gradients of a model of which it is not known when they are ready: as many, evenly."""
LOSS_BYTES = 16
"""Bytes of the sum of losses and the sum of weights of a step, in float64."""
CACHE_BYTES = 32 * 2**20
THREAD_S = 0.8e-3
"""Seconds of a step that hooks of gradients and a thread of sums take, of the MLP on 2 cores."""


class PlannedBucket(NamedTuple):
    """Gradients that are summed together."""

    ready: float
    """Share of the backward pass that is over when their sum begins."""
    sum: PlannedSum


class StepPrediction(NamedTuple):
    """A step of all ranks, in seconds; what is not exposed is hidden behind the backward pass."""

    step_s: float
    compute_s: float
    waiting_s: float
    exposed_s: float
    hidden_s: float

    @classmethod
    def of(cls, spans: Sequence[ActionSpan], time: ComputeTime) -> StepPrediction:
        """Return the parts of a step's actions: of the rank that computes most, and of a pipeline
        its bubble is exposed. time: step of a rank that exchanges nothing."""
        busy: dict[str, float] = {}
        for span in spans:
            lane = span.action.lane
            busy[lane] = busy.get(lane, 0.0) + span.ended_s - span.began_s
        step_s = length_s(spans)
        computing_s = max(each for lane, each in busy.items() if lane.startswith(COMPUTE))
        waiting_s = computing_s * time.waiting_s / max(1e-12, time.waiting_s + time.own_s)
        exposed_s = max(0.0, step_s - computing_s)
        hidden_s = max(0.0, busy.get(NETWORK, 0.0) - exposed_s)
        return cls(step_s, computing_s - waiting_s, waiting_s, exposed_s, hidden_s)

    def mixed_with(self, other: StepPrediction, share: float) -> StepPrediction:
        """Return the parts between these and the other's, which count as `share`."""
        return StepPrediction(
            *((1 - share) * a + share * b for a, b in zip(self, other, strict=True))
        )


def bucket_list(
    profile: ProgramProfile,
    layout: RankLayout,
    sums: Sequence[SumTime],
    *,
    overlap: bool | None = None,
    link: Link | None = None,
    coding: Coding | None = None,
    cache_bytes: int = CACHE_BYTES,
    turns: float = 1.0,
    pace: float = 1.0,
) -> list[PlannedBucket]:
    """Return the sums of a step; one of all gradients where the backward pass hides none.

    overlap: None: as the run decides. link: an emulated one. coding: of compressed gradients.
    turns: ranks that share a core. pace: as of `ProgramProfile`.
    """
    whole, one_node = profile.gradient_bytes, layout.on_one_node and link is None
    overlaps = overlaps_by_default(layout.ranks, on_one_node=one_node)
    if overlap is not None:
        overlaps = overlap and layout.ranks > 1
    messages = None if link is None else profile.message_sums
    rate = profile.memory_bytes_per_s or FALLBACK_BYTES_PER_S

    def planned(num_bytes: int) -> PlannedSum:
        found = plan_sum(
            num_bytes, profile.itemsize, layout, sums, message_sums=messages, turns=turns
        )
        return found if coding is None else coded(found, coding, rate)

    if not overlaps and coding is None:
        return [PlannedBucket(1.0, planned(whole))]
    gradients = profile.gradients or _even(whole, profile.itemsize)
    most = largest_bytes(
        layout.ranks,
        whole,
        on_one_node=one_node,
        cache_bytes=cache_bytes,
        link=link,
        overlaps=overlaps,
    )
    sizes = [gradient.bytes for gradient in gradients]
    numbers = assign_buckets(
        sizes, ["gradient"] * len(sizes), range(len(sizes)), most, most // LAST_BUCKET_DIVISOR
    )
    *others, last = (planned(sum(sizes[number] for number in bucket)) for bucket in numbers)
    if overlaps:
        last = last._replace(node_s=last.node_s + pace * THREAD_S)
    return [
        PlannedBucket(_submitted(gradients, max(bucket)) if overlaps else 1.0, sum_)
        for bucket, sum_ in zip(numbers, (*others, last), strict=True)
    ]


def _submitted(gradients: Sequence[Gradient], last: int) -> float:
    """Return the share of the backward pass that is over when a bucket whose last gradient this is
    is handed on: with the gradient after it, as the run does it, for the program's own hooks."""
    return gradients[last + 1].ready if last + 1 < len(gradients) else 1.0


def loss_sum_of(layout: RankLayout, link: Link | None) -> PlannedSum | None:
    """Return the sum of loss and weight that follows those of the gradients; None where these carry
    it, in the memory of one node."""
    if layout.ranks == 1 or (layout.on_one_node and link is None):
        return None
    return plan_sum(LOSS_BYTES, 8, layout, [], message_sums=None if link is None else [])


def _even(whole: int, itemsize: int) -> list[Gradient]:
    values = whole // itemsize
    ends = [values * number // EVEN_GRADIENTS for number in range(EVEN_GRADIENTS + 1)]
    return [
        Gradient(bytes=(end - start) * itemsize, ready=(number + 1) / EVEN_GRADIENTS)
        for number, (start, end) in enumerate(itertools.pairwise(ends))
        if end > start
    ]


def step_spans(
    time: ComputeTime,
    buckets: Sequence[PlannedBucket],
    link: LinkSpeed | None,
    *,
    hides: bool = True,
    loss_sum: PlannedSum | None = None,
    thread_share: float = 0.0,
) -> list[ActionSpan]:
    """Return all actions of a step with their times.

    Ranks wait for the slowest at the first sum: what it is later by stands before that.

    link: between the nodes; None: all ranks are on one. hides: sums go on while the backward pass
    runs. loss_sum: as `loss_sum_of`. thread_share: share of the time that a sum and the
    backward pass go on beside each other by which each delays the other, where no core is free for
    the thread that sums.
    """
    actions = [
        LaneAction("data", COMPUTE, time.data_s + time.other_s),
        LaneAction("forward", COMPUTE, time.forward_s + time.waiting_s),
    ]
    several = len(buckets) > 1 and hides
    done, sums, taken_s = 0.0, [], 0.0
    for number, bucket in enumerate(buckets):
        if several or number == 0:
            until = bucket.ready if several else 1.0
            seconds = max(0.0, until - done) * time.backward_s + taken_s
            actions.append(LaneAction("backward", COMPUTE, seconds))
            done = max(done, until)
        sum_s = bucket.sum.seconds(link)
        beside_s = min(sum_s, (1 - done) * time.backward_s) if several else 0.0
        taken_s = thread_share * beside_s
        actions.append(
            LaneAction(f"bucket {number}", NETWORK, sum_s + taken_s, (len(actions) - 1,))
        )
        sums.append(len(actions) - 1)
    actions.append(LaneAction("backward", COMPUTE, (1 - done) * time.backward_s + taken_s))
    if loss_sum is not None:
        actions.append(LaneAction("loss", NETWORK, loss_sum.seconds(link), (len(actions) - 1,)))
        sums.append(len(actions) - 1)
    actions.append(LaneAction("optimizer", COMPUTE, time.optimizer_s, tuple(sums)))
    return run_actions(actions)
