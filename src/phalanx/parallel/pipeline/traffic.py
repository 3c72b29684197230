"""Bytes that a rank of a pipeline sends and receives. Pure; needs no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phalanx.parallel.pipeline.layout import PipelineLayout


class StepTraffic(NamedTuple):
    """Bytes of one rank in one step of training."""

    sent_bytes: int
    received_bytes: int


def step_traffic(layout: PipelineLayout, rank: int, boundary_bytes: Sequence[int]) -> StepTraffic:
    """Return the bytes over a rank's boundaries in one step.

    Each micro-batch's activations go over each boundary between stages of different ranks, and
    gradients of the same size come back.

    boundary_bytes: of one micro-batch's activations, behind each stage but the last.
    """
    assert len(boundary_bytes) == layout.num_stages - 1, "one behind each stage but the last"
    crossed = 0
    for stage in layout.stages_of(rank):
        for other, boundary in ((stage - 1, stage - 1), (stage + 1, stage)):
            if 0 <= other < layout.num_stages and layout.rank_of(other) != rank:
                crossed += boundary_bytes[boundary]
    both_ways = layout.micro_batches * crossed
    return StepTraffic(both_ways, both_ways)


TRAFFIC_FORMULA = "each boundary with another rank: m micro-batches of activations, and gradients"
