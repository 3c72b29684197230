"""Normalization of the arguments of collectives: options or keywords, a tensor or lists."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor


class NamedGroup(Protocol):
    """A process group, as error messages name it."""

    def size(self) -> int: ...

    def _label(self, collective: str) -> str: ...


def make_options(
    kind: type,
    opts: Any,
    *,
    op: Any = None,
    root: int | None = None,
    timeout: timedelta | None = None,
) -> Any:
    """Return options of type `kind`, made from the reduce operation, root or timeout if needed.

    PyTorch's methods take the options, or the operation or root in their place, or keywords."""
    if hasattr(opts, "asyncOp"):
        return opts
    made = kind()
    if isinstance(opts, timedelta):
        timeout = opts
    elif isinstance(opts, int) and hasattr(made, "rootRank"):
        root = opts
    elif opts is not None:
        op = opts
    if op is not None:
        made.reduceOp = op
    if root is not None:
        made.rootRank = root
    if timeout is not None:
        made.timeout = timeout
    return made


def single_tensor(tensors: Sequence[Tensor] | Tensor, group: NamedGroup, collective: str) -> Tensor:
    """Return the tensor of a list of one; PyTorch's lists were meant for several GPUs a process."""
    if isinstance(tensors, Tensor):
        return check_strided(tensors, group, collective)
    if len(tensors) != 1:
        raise ValueError(
            f"{group._label(collective)}: {len(tensors)} tensors where one is expected"
        )
    return check_strided(tensors[0], group, collective)


def single_list(
    lists: Sequence[Sequence[Tensor]] | Sequence[Tensor], group: NamedGroup, collective: str
) -> list[Tensor]:
    """Return the list of tensors in a list of one, checked."""
    if lists and isinstance(lists[0], Tensor):
        tensors: Any = lists
    elif len(lists) == 1:
        tensors = lists[0]
    else:
        raise ValueError(f"{group._label(collective)}: {len(lists)} lists of tensors, not one")
    return [check_strided(tensor, group, collective) for tensor in tensors]


def check_strided(tensor: Tensor, group: NamedGroup, collective: str) -> Tensor:
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"{group._label(collective)}: a tensor with layout {tensor.layout} cannot be sent; "
            "pass its values and indices, or tensor.to_dense()"
        )
    return tensor


def check_one_per_rank(tensors: Sequence[Tensor], group: NamedGroup, collective: str) -> None:
    """Check that there is one tensor per rank, all of one dtype."""
    if len(tensors) != group.size():
        raise ValueError(
            f"{group._label(collective)}: {len(tensors)} tensors for {group.size()} ranks"
        )
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise TypeError(f"{group._label(collective)}: tensors of several dtypes: {names}")


def check_rank(rank: int, group: NamedGroup, collective: str, name: str) -> int:
    if not 0 <= rank < group.size():
        raise ValueError(
            f"{group._label(collective)}: {name} is {rank}, but the group has ranks 0 to "
            f"{group.size() - 1}"
        )
    return rank


def splits_in_elements(
    splits: Sequence[int], tensor: Tensor, group: NamedGroup, collective: str, name: str
) -> list[int]:
    """Return the number of elements per rank from `splits` in rows; empty: equal splits."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % group.size():
            raise ValueError(
                f"{group._label(collective)}: the {name} has {rows} rows, which {group.size()} "
                "ranks cannot share equally; give the split sizes"
            )
        splits = [rows // group.size()] * group.size()
    if len(splits) != group.size() or sum(splits) != rows or min(splits) < 0:
        raise ValueError(
            f"{group._label(collective)}: {name} split sizes {list(splits)} for {group.size()} "
            f"ranks and {rows} rows"
        )
    per_row = tensor.numel() // rows if rows else 0
    return [split * per_row for split in splits]
