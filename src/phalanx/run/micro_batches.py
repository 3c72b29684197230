"""Division of a global batch into micro-batches, and of these among the ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phalanx.comm.layout import share_of


class MicroBatchSlice(NamedTuple):
    """Samples of a global batch that are computed together."""

    number: int
    """Number in the global batch, from 0."""
    start: int
    stop: int
    """Samples [start, stop) of the global batch."""
    is_padding: bool = False
    """Computed so that the rank takes part in the step, and counted nowhere."""

    @property
    def num_samples(self) -> int:
        """Return the samples that count."""
        return 0 if self.is_padding else self.stop - self.start


def micro_batches_of_rank(
    num_samples: int, *, number: int, rank: int, num_ranks: int, evenly: bool = False
) -> list[MicroBatchSlice]:
    """Return the micro-batches of a global batch that `rank` computes, at least one.

    Sizes differ by at most one sample, and do not depend on the number of ranks; each rank gets
    consecutive ones, whose number differs by at most one. A rank that would get none, because the
    last global batch of an epoch has fewer samples than micro-batches, gets a padding one.

    num_samples: of the global batch, at least 1. number: of micro-batches in a full global batch.
    evenly: every rank gets as many, by padding: each needs all others for a forward pass.
    """
    own = share_of(rank, num_ranks, number)
    slices = cut_micro_batches(num_samples, number=number, own=own)
    if evenly:
        shares = [share_of(each, num_ranks, number) for each in range(num_ranks)]
        most = max(len(cut_micro_batches(num_samples, number=number, own=it)) for it in shares)
        slices += [_padding(own) for _ in range(most - len(slices))]
    return slices


def cut_micro_batches(
    num_samples: int, *, number: int, own: Sequence[int]
) -> list[MicroBatchSlice]:
    """Return as `micro_batches_of_rank`, of a rank that computes those numbered `own`."""
    shares = [(index, share_of(index, number, num_samples)) for index in own]
    slices = [MicroBatchSlice(index, cut.start, cut.stop) for index, cut in shares if cut]
    return slices or [_padding(own)]


def _padding(own: Sequence[int]) -> MicroBatchSlice:
    return MicroBatchSlice(own[0] if own else 0, 0, 1, is_padding=True)
