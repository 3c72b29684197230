"""Division of a global batch into micro-batches, and of these among the ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phalanx.comm.layout import share_of
from phalanx.errors import UserError

BITWISE_MICRO_BATCHES = 8
"""Default micro-batches of a global batch whose results have the same bits on any number of
ranks."""


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


def check_number(number: int | None, *, batch_size: int, num_ranks: int) -> int:
    """Return the number of micro-batches in a global batch: one a rank where None was asked for.

    Raises: UserError when ranks, or micro-batches, would be left without samples.
    """
    if number is None:
        number = num_ranks
        if batch_size < num_ranks:
            raise UserError(
                f"batch_size={batch_size} is the global batch, and there are {num_ranks} ranks: "
                f"give at least {num_ranks}, or start fewer ranks"
            )
    ranks = f"{num_ranks} rank{'s' * (num_ranks > 1)}"
    if not num_ranks <= number <= batch_size:
        raise UserError(
            f"micro_batches={number} does not fit: with {ranks} and batch_size="
            f"{batch_size} it is from {num_ranks} to {batch_size}"
        )
    return number
