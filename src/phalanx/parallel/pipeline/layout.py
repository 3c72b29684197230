"""Placement of stages on ranks, and the limits of each schedule. Pure; needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phalanx.errors import UserError

PipelineSchedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]


@dataclass(frozen=True, kw_only=True)
class PipelineLayout:
    """A schedule with its numbers; validated where it is made.

    Raises: UserError when the schedule cannot run with these numbers.
    """

    schedule: PipelineSchedule
    num_ranks: int
    micro_batches: int
    stages_per_rank: int

    def __post_init__(self) -> None:
        check(self)

    @property
    def num_stages(self) -> int:
        return self.num_ranks * self.stages_per_rank

    @property
    def is_v(self) -> bool:
        """Return whether stages go down the ranks and back up, so that the first rank holds the
        first stage and the last (ZB-V, Qi et al. 2024), instead of round and round."""
        return self.schedule == "zero-bubble" and self.stages_per_rank == 2

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages of `rank`, in the order of the forward pass."""
        if self.is_v:
            return rank, self.num_stages - 1 - rank
        return tuple(range(rank, self.num_stages, self.num_ranks))

    def rank_of(self, stage: int) -> int:
        """The rank that holds `stage`."""
        if self.is_v and stage >= self.num_ranks:
            return self.num_stages - 1 - stage
        return stage % self.num_ranks

    @property
    def last_rank(self) -> int:
        """The rank that sees the loss."""
        return self.rank_of(self.num_stages - 1)


def layout_of(
    schedule: PipelineSchedule,
    *,
    num_ranks: int,
    micro_batches: int | None = None,
    stages_per_rank: int | None = None,
) -> PipelineLayout:
    """Return the layout with the defaults filled in: 4 micro-batches for each rank, which leaves a
    bubble of a fifth and less; 2 stages a rank where a schedule wants several.

    Raises: UserError when the schedule cannot run with these numbers.
    """
    several = schedule in ("interleaved", "zero-bubble")
    return PipelineLayout(
        schedule=schedule,
        num_ranks=num_ranks,
        micro_batches=4 * num_ranks if micro_batches is None else micro_batches,
        stages_per_rank=(2 if several else 1) if stages_per_rank is None else stages_per_rank,
    )


def check(layout: PipelineLayout) -> None:
    """Raise UserError with the numbers that do not fit, and some that do."""
    name = layout.schedule
    ranks, micro_batches, stages = layout.num_ranks, layout.micro_batches, layout.stages_per_rank
    if min(ranks, micro_batches, stages) < 1:
        raise UserError(
            "a pipeline needs at least one rank, one stage per rank and one micro-batch, not "
            f"{ranks}, {stages} and {micro_batches}"
        )
    if name in ("gpipe", "1f1b") and stages != 1:
        raise UserError(
            f"--pipeline-schedule {name} has 1 stage per rank, not {stages}: leave "
            "--stages-per-rank out, or use interleaved or zero-bubble"
        )
    if name == "interleaved" and stages < 2:
        raise UserError(
            "--pipeline-schedule interleaved needs --stages-per-rank 2 or more, not "
            f"{stages}: with one it is 1f1b"
        )
    if name == "1f1b" and micro_batches < ranks:
        raise UserError(
            f"--pipeline-schedule 1f1b needs a micro-batch for each of its {ranks} ranks, not "
            f"{micro_batches}: use --micro-batches {ranks} or more, or gpipe"
        )
    rounds = num_rounds(layout)
    if goes_in_rounds(layout) and micro_batches % rounds:
        below = micro_batches // ranks * ranks
        raise UserError(
            f"--pipeline-schedule {name} runs --micro-batches {micro_batches} in {rounds} rounds "
            f"of {ranks} or more, which must be equal: use {below} or {below + ranks}"
        )


def goes_in_rounds(layout: PipelineLayout) -> bool:
    """Return whether a rank takes `num_ranks` micro-batches through each of its stages before the
    next."""
    return layout.schedule in ("interleaved", "zero-bubble") and not layout.is_v


def num_rounds(layout: PipelineLayout) -> int:
    return max(1, layout.micro_batches // layout.num_ranks)
