"""A collective call as a value, checks of its arguments, and its signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DType, ReduceOp, check_operation

Kind = Literal[
    "barrier", "all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all",
    "gather", "scatter",
]  # fmt: skip
AlgorithmOption = Literal[
    "auto", "shared", "direct", "naive", "ring", "tree", "halving", "lanes", "library"
]


class Collective(NamedTuple):
    """A collective as one rank calls it.

    inputs, outputs: one buffer, or one a rank. What is reduced or broadcast in place is both. The
    lists that only the root of a gather or scatter has are empty elsewhere.
    """

    kind: Kind
    inputs: Sequence[Buffer] = ()
    outputs: Sequence[Buffer] = ()
    op: ReduceOp | None = None
    """None: nothing is reduced."""
    divisor: float = 1.0
    root: int | None = None
    """None: all ranks do the same."""
    algorithm: AlgorithmOption = "auto"
    """Requested; of an all-reduce only."""
    name: str = ""
    """Name in errors; empty: the kind."""

    @property
    def dtype(self) -> DType:
        """Type of the elements of all buffers."""
        return (self.outputs or self.inputs)[0].dtype

    @property
    def reduction(self) -> ReduceOp:
        """The operation of a collective that reduces."""
        assert self.op is not None, "it reduces"
        return self.op


class Call(NamedTuple):
    """Signature of a collective call: its arguments on which ranks must agree, without buffers."""

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


def check_collective(collective: Collective, rank: int, size: int) -> Call:
    """Check the arguments of `rank` of `size` ranks, and return the call without its buffers.

    Raises: ValueError; TypeError when the elements have no such reduction.
    """
    kind, inputs, outputs, op, divisor, root, _, name = collective
    if kind == "barrier":
        return Call(name or kind)
    dtype = (outputs or inputs)[0].dtype
    if op is not None:
        check_operation(dtype, op)
    if root is not None:
        check_rank(root, size, "root")
    if kind in ("all_reduce", "reduce", "broadcast"):
        counts: tuple[int, ...] = (inputs[0].count,)
    elif kind == "all_gather":
        counts = check_gathered(outputs, inputs[0], rank, size)
    elif kind == "reduce_scatter":
        counts = check_gathered(inputs, outputs[0], rank, size)
    else:
        return _check_exchange(collective, rank, size)
    return Call(kind, dtype, counts, op, root, divisor)


def _check_exchange(collective: Collective, rank: int, size: int) -> Call:
    """Check an all-to-all, a gather or a scatter, whose ranks know some of the counts only."""
    kind, inputs, outputs, _, _, root, *_ = collective
    sent: tuple[int | None, ...] = ()
    expected: tuple[int | None, ...] = ()
    if kind == "all_to_all":
        check_one_each(outputs, size)
        sent, expected = check_gathered(inputs, outputs[rank], rank, size), counts_of(outputs)
    elif kind == "gather":
        sent = only(inputs[0].count, root, size)
        if rank == root:
            expected = check_gathered(given(outputs, "outputs"), inputs[0], rank, size)
    else:
        expected = only(outputs[0].count, root, size)
        if rank == root:
            sent = check_gathered(given(inputs, "parts"), outputs[0], rank, size)
    return Call(kind, collective.dtype, root=root, sent=sent, expected=expected)


def counts_of(buffers: Sequence[Buffer]) -> tuple[int, ...]:
    return tuple([buffer.count for buffer in buffers])


def check_gathered(buffers: Sequence[Buffer], own: Buffer, rank: int, size: int) -> tuple[int, ...]:
    """Return the counts of one buffer a rank, all of one dtype, that of `rank` as long as `own`.

    Raises: ValueError.
    """
    check_one_each(buffers, size)
    for peer, buffer in enumerate(buffers):
        if buffer.dtype != own.dtype:
            raise ValueError(
                f"the buffer for rank {peer} has dtype {buffer.dtype.name}, but the local one has "
                f"{own.dtype.name}"
            )
    if buffers[rank].count != own.count:
        raise ValueError(
            f"the buffer for this rank, {rank}, has {buffers[rank].count} elements, but its "
            f"counterpart has {own.count}"
        )
    return counts_of(buffers)


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
        raise ValueError(f"tag {tag} is out of range: message tags are 0 to {max_tag}")


def check_members(members: Sequence[int], rank: int, size: int) -> None:
    """Raises: ValueError when they are no ranks of the group, or `rank` is not among them."""
    for member in members:
        check_rank(member, size, "a member")
    if len(set(members)) != len(members):
        raise ValueError(f"a member is listed twice: {list(members)}")
    if rank not in members:
        raise ValueError(f"rank {rank} makes a subgroup {list(members)}: it is not a member")


def given(buffers: Sequence[Buffer], name: str) -> Sequence[Buffer]:
    """Raises: ValueError when the root has not got what it must have."""
    if not buffers:
        raise ValueError(f"the root needs {name}: one buffer per rank")
    return buffers


def only(count: int, peer: int | None, size: int) -> tuple[int | None, ...]:
    """So many elements for one peer; nothing is said of the others."""
    return tuple([count if rank == peer else None for rank in range(size)])
