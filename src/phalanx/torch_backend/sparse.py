"""Sums of sparse tensors, such as embedding gradients, over all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.group import Group
from phalanx.torch_backend.reduce_ops import Reduction
from phalanx.torch_backend.tensors import buffer_of

MAX_DIMS = 14


def check_sparse(tensor: Tensor, reduction: Reduction, label: str) -> None:
    """Check that `sum_sparse` can reduce `tensor`. Raises: TypeError that begins with `label`."""
    if reduction != Reduction(ReduceOp.SUM):
        raise TypeError(f"{label}: sparse tensors can only be summed")
    if not tensor.is_cpu or len(tensor.shape) > MAX_DIMS - 2:
        raise TypeError(
            f"{label}: a sparse tensor must be on the CPU, of no more than {MAX_DIMS - 2} "
            "dimensions"
        )


def sum_sparse(tensor: Tensor, engine: Group, timeout_s: float | None) -> None:
    """Sum `tensor`, in the COO layout, over all ranks, in place: every rank gets the elements of
    all of them. The ranks may have different numbers of elements at different indices.

    Raises: ValueError, on every rank, where the shapes differ.
    """
    local = tensor.detach().coalesce()
    shape = [local.sparse_dim(), local.dense_dim(), *local.shape]
    padding = [0] * (MAX_DIMS - len(shape))
    local_layout = torch.tensor([local._nnz(), *shape, *padding], device="cpu")
    layouts = _gathered(local_layout, [local_layout.shape] * engine.size, engine, timeout_s)
    for rank, layout in enumerate(layouts):
        if not torch.equal(layout[1:], local_layout[1:]):
            theirs = tuple(layout[3 : 3 + int(layout[1]) + int(layout[2])].tolist())
            raise ValueError(
                f"sparse tensors of different shapes: {theirs} on rank {rank}, "
                f"{tuple(local.shape)} on rank {engine.rank}"
            )
    counts = [int(layout[0]) for layout in layouts]
    values, indices = local.values(), local.indices()
    all_indices = _gathered(indices, [(len(indices), n) for n in counts], engine, timeout_s)
    all_values = _gathered(values, [(n, *values.shape[1:]) for n in counts], engine, timeout_s)
    total = torch.sparse_coo_tensor(
        torch.cat(all_indices, 1), torch.cat(all_values), local.shape, check_invariants=False
    )
    with torch.no_grad():
        tensor.copy_(total.coalesce())


def _gathered(
    local: Tensor,
    shapes: Sequence[tuple[int, ...]],
    engine: Group,
    timeout_s: float | None,
) -> list[Tensor]:
    """All-gather one tensor per rank, of `shapes`."""
    outputs = [local.new_empty(shape) for shape in shapes]
    engine.all_gather(
        [buffer_of(output) for output in outputs],
        buffer_of(local.contiguous()),
        timeout_s=timeout_s,
    )
    return outputs
