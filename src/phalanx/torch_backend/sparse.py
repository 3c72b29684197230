"""Sums of sparse tensors, such as embedding gradients, over all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.comm.group import Group
from phalanx.torch_backend.tensors import buffer_of

MAX_DIMS = 14


def sum_sparse(tensor: Tensor, engine: Group, timeout_s: float | None) -> None:
    """Sum `tensor`, in the COO layout, over all ranks, in place: every rank gets the elements of
    all of them. The ranks may have different numbers of elements at different indices.

    Raises: ValueError, on every rank, where the shapes differ.
    """
    own = tensor.detach().coalesce()
    shape = [own.sparse_dim(), own.dense_dim(), *own.shape]
    mine = torch.tensor([own._nnz(), *shape] + [0] * (MAX_DIMS - len(shape)))
    layouts = _gathered(mine, [mine.shape] * engine.size, engine, timeout_s)
    for rank, layout in enumerate(layouts):
        if not torch.equal(layout[1:], mine[1:]):
            theirs = tuple(layout[3 : 3 + int(layout[1]) + int(layout[2])].tolist())
            raise ValueError(
                f"sparse tensors of different shapes: {theirs} on rank {rank}, "
                f"{tuple(own.shape)} on rank {engine.rank}"
            )
    counts = [int(layout[0]) for layout in layouts]
    values, indices = own.values(), own.indices()
    all_indices = _gathered(indices, [(len(indices), n) for n in counts], engine, timeout_s)
    all_values = _gathered(values, [(n, *values.shape[1:]) for n in counts], engine, timeout_s)
    total = torch.sparse_coo_tensor(
        torch.cat(all_indices, 1), torch.cat(all_values), own.shape, check_invariants=False
    )
    with torch.no_grad():
        tensor.copy_(total.coalesce())


def _gathered(
    own: Tensor,
    shapes: Sequence[tuple[int, ...]],
    engine: Group,
    timeout_s: float | None,
) -> list[Tensor]:
    """All-gather one tensor per rank, of `shapes`."""
    outputs = [torch.empty(shape, dtype=own.dtype) for shape in shapes]
    engine.all_gather(
        [buffer_of(output) for output in outputs],
        buffer_of(own.contiguous()),
        timeout_s=timeout_s,
    )
    return outputs
