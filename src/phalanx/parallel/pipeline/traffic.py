"""Bytes that a rank of a pipeline sends and receives. Pure; needs no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.parallel.pipeline.layout import PipelineLayout


def step_traffic(layout: PipelineLayout, rank: int, boundary_bytes: Sequence[int]) -> int:
    """Return the bytes that a rank sends over its boundaries in one step, and receives.

    The activations of all samples go over each boundary between stages of different ranks, and
    gradients of the same size come back.

    boundary_bytes: of these activations, behind each stage but the last.
    """
    assert len(boundary_bytes) == layout.num_stages - 1, "one behind each stage but the last"
    crossed = 0
    for stage in layout.stages_of(rank):
        for other, boundary in ((stage - 1, stage - 1), (stage + 1, stage)):
            if 0 <= other < layout.num_stages and layout.rank_of(other) != rank:
                crossed += boundary_bytes[boundary]
    return crossed


TRAFFIC_FORMULA = "each boundary with another rank: the activations of the batch, and gradients"
