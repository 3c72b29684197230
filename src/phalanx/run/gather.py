"""Rows of a global batch on every rank; their gradients go back to the rank that made them."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy
from phalanx.run.batch import MicroBatch

ALL_AT_ONCE = "run.gather: a loss over the global batch needs all of its rows at once, and "


def check_gather(strategy: Strategy, micro_batches: int) -> None:
    """Raise UserError where the ranks do not compute a global batch at once, by the same
    parameters. micro_batches: of a full global batch."""
    if strategy.num_blocks is not None:
        raise UserError(
            f"{ALL_AT_ONCE}bitwise=True and --survive compute its micro-batches one after the "
            "other: leave them out; updates are then the same on any number of ranks up to rounding"
        )
    if not strategy.is_in_lockstep:
        raise UserError(
            'run.gather: the workers of strategy="server" run out of step: use strategy="mpi"'
        )
    if strategy.data_size != strategy.size:
        raise UserError(
            f"{ALL_AT_ONCE}here {strategy.size} ranks see {strategy.data_size} parts of it, since "
            'some ranks divide the layers of the model: use strategy="mpi"'
        )
    if micro_batches != strategy.size:
        ranks = f"{strategy.size} rank{'s' * (strategy.size > 1)}"
        raise UserError(
            f"{ALL_AT_ONCE}micro_batches={micro_batches} are computed one after the other on "
            f"{ranks}: leave micro_batches= out"
        )
    if not strategy.sums_gradients:
        raise UserError(
            'run.gather: strategy="local" trains each rank on separate samples: use strategy="mpi"'
        )


def gather_rows(group: RunGroup, batch: MicroBatch, tensor: object) -> Tensor:
    """Return the rows of all ranks' micro-batches, in the order of the samples. Collective.

    tensor: one row for each sample of `batch`, of which those of padding are left out.
    Raises: UserError for a tensor that has other rows, on every rank where one has another shape.
    """
    num_rows = batch.num_samples or 1  # 1 for padding
    if not isinstance(tensor, Tensor) or not tensor.dim() or len(tensor) != num_rows:
        found = f"shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else repr(tensor)
        raise UserError(
            f"run.gather takes one row for each of the {num_rows} samples of the micro-batch, but "
            f"this is {found}: gather each output of the model separately"
        )
    if group.size == 1:
        return tensor
    rows = tensor[: batch.num_samples]
    counts = _agree(group, rows)
    apply: Any = _Gather.apply
    gathered: Tensor = apply(rows, group, counts)
    return gathered


def _agree(group: RunGroup, rows: Tensor) -> list[int]:
    """Return the number of rows of each rank. Raises: UserError where their shapes differ."""
    kind = f"{str(rows.dtype).removeprefix('torch.')} {tuple(rows.shape[1:])}"
    kind += "" if rows.requires_grad else ", without gradient"
    own = [0.0] * 2 * group.size
    own[2 * group.rank : 2 * group.rank + 2] = len(rows), crc32(kind.encode())
    values = group.sum(own)
    kinds = values[1::2]
    others = [group.name(rank) for rank in range(group.size) if kinds[rank] != kinds[group.rank]]
    if others:
        raise UserError(
            f"run.gather: rows are {kind} on {group.name(group.rank)}, but different on "
            f"{others[0]}: give rows of the same shape and type on every rank, e.g. by padding"
        )
    return list(map(int, values[::2]))


class _Gather(Function):
    """Concatenation over the ranks, and the sum over the ranks of what its rows are to change."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: RunGroup, counts: list[int]) -> Tensor:
        ctx.group, ctx.counts = group, counts
        return group.gather_rows(rows.contiguous().cpu(), counts).to(rows.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        own = ctx.group.sum_rows(gradient.contiguous().cpu(), ctx.counts)
        return own.to(gradient.device), None, None
