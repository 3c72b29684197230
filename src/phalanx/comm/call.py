"""Signature of a collective call, and checks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DType, ReduceOp


class Call(NamedTuple):
    """A collective with those of its arguments on which ranks must agree."""

    name: str
    dtype: DType | None = None
    counts: tuple[int, ...] = ()
    op: ReduceOp | None = None
    root: int | None = None
    divisor: float = 1.0
    sent: tuple[int | None, ...] = ()
    """all_to_all, gather, scatter: elements for each peer; None where nothing is said."""
    expected: tuple[int | None, ...] = ()

    def __str__(self) -> str:
        words = [self.dtype.name] if self.dtype else []
        counts = self.counts or self.sent or self.expected
        if counts:
            words.append(f"{' + '.join(str(n) for n in counts if n is not None)} elements")
        if self.op is not None:
            words.append(self.op.name)
        if self.divisor != 1.0:
            words.append(f"divided by {self.divisor:g}")
        if self.root is not None:
            words.append(f"root {self.root}")
        return f"{self.name}({', '.join(words)})"

    @property
    def agreed(self) -> str:
        """The same text on every rank of a right collective."""
        return str(self._replace(sent=(), expected=()))


def counts_of(buffers: Sequence[Buffer]) -> tuple[int, ...]:
    return tuple([buffer.count for buffer in buffers])


def check_gathered(buffers: Sequence[Buffer], own: Buffer, rank: int, size: int) -> None:
    """One buffer a rank, all of one dtype, the own one as long as `own`.

    Raises: ValueError.
    """
    check_one_each(buffers, size)
    for peer, buffer in enumerate(buffers):
        if buffer.dtype != own.dtype:
            raise ValueError(
                f"the buffer for rank {peer} is of {buffer.dtype.name}, the own one of "
                f"{own.dtype.name}"
            )
    if buffers[rank].count != own.count:
        raise ValueError(
            f"the buffer for rank {rank}, which is this one, has {buffers[rank].count} elements, "
            f"and its other end {own.count}"
        )


def check_one_each(buffers: Sequence[Buffer], size: int) -> None:
    """Raises: ValueError when there is not one buffer a rank."""
    if len(buffers) != size:
        raise ValueError(f"{len(buffers)} buffers for a group of {size} ranks")


def check_rank(rank: int, size: int, name: str) -> None:
    """Raises: ValueError when there is no such rank."""
    if not 0 <= rank < size:
        raise ValueError(f"{name} is {rank}, but the group has ranks 0 to {size - 1}")


def check_tag(tag: int, max_tag: int) -> None:
    """Raises: ValueError when no message can have this tag."""
    if not 0 <= tag <= max_tag:
        raise ValueError(f"tag {tag} is not among the tags of messages, 0 to {max_tag}")


def check_members(members: Sequence[int], rank: int, size: int) -> None:
    """Raises: ValueError when they are no ranks of the group, or `rank` is not among them."""
    for member in members:
        check_rank(member, size, "a member")
    if len(set(members)) != len(members):
        raise ValueError(f"a member comes twice: {list(members)}")
    if rank not in members:
        raise ValueError(f"rank {rank} makes a subgroup of ranks {list(members)}: it is no member")


def given(buffers: Sequence[Buffer] | None, name: str) -> Sequence[Buffer]:
    """Raises: ValueError when the root has not got what it must have."""
    if buffers is None:
        raise ValueError(f"the root needs {name}: one buffer a rank")
    return buffers


def only(count: int, peer: int, size: int) -> tuple[int | None, ...]:
    """So many elements for one peer; nothing is said of the others."""
    return tuple([count if rank == peer else None for rank in range(size)])
