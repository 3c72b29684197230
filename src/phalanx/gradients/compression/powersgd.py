"""PowerSGD: gradients as products of two thin matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Size, Tensor

from phalanx.gradients.compression.codec import Cast
from phalanx.gradients.compression.codec_compressor import CodecAllReduce, ErrorFeedback
from phalanx.gradients.compression.compressor import Compressor, ReduceBackend, Scratch, is_finite

_DEPENDENT = 1e-5
"""A column is linearly dependent on those before it if less than this part of its norm remains:
float32 leaves rounding errors of that size."""


class Piece(NamedTuple):
    """A parameter of a bucket, as a matrix of its first dimension by all others."""

    rows: int
    columns: int
    rank: int
    """Columns of its factors; 0: it is sent as it is."""


class PowerSGD(Compressor):
    """A parameter of two or more dimensions is a matrix M of its first by all others. With Q of the
    step before, P = M Q is summed and made orthonormal, Q = Mᵀ P is summed, and M counts as P Qᵀ:
    one step of the power iteration that finds the largest singular vectors of the sum. What a
    rank's own M has beyond P Pᵀ M it adds to its next gradient. Parameters of one dimension, and
    matrices so small that factors would be no fewer values, are sent as they are.

    A degenerate column of Q (zeros, or a gradient was not finite) is drawn anew at random.
    The products are made on every rank: the same bits need the same kernels, that is one kind of
    processor and one PyTorch.

    Cost:   4r(rows + columns) bytes in place of 4 · rows · columns, in two rounds of two;
            8r operations a value.
    Source: Vogels, Karimireddy & Jaggi 2019, arXiv:1905.13727.
    """

    name = "powersgd"
    has_state = True

    def __init__(self, rank: int, seed: int = 0) -> None:
        super().__init__()
        self._rank, self._seed = rank, seed
        self._scratch = Scratch()
        self._all_reduce = CodecAllReduce(Cast(torch.float32))
        self._layouts: dict[int, list[Piece]] = {}
        self._residuals: dict[int, Tensor] = {}
        self._right: dict[int, list[Tensor]] = {}
        self._num_drawn = 0

    @property
    def state_name(self) -> str:
        return f"{self.name} of rank {self._rank}"

    def prepare(self, number: int, shapes: Sequence[Size]) -> None:
        super().prepare(number, shapes)
        self._layouts[number] = layout_of(shapes, self._rank)

    def drop_state(self) -> None:
        for state in (self._layouts, self._residuals, self._right):
            state.clear()

    def reduce(self, number: int, values: Tensor, backend: ReduceBackend) -> None:
        if backend.size == 1:
            return
        if number not in self._layouts:
            self.prepare(number, [values.shape])
        with self._scratch.as_float32(values) as working:
            self._reduce(number, working, backend)

    def _reduce(self, number: int, values: Tensor, backend: ReduceBackend) -> None:
        layout = self._layouts[number]
        parts = list(zip(layout, values.split([p.rows * p.columns for p in layout]), strict=True))
        matrices = [part.view(piece.rows, -1) for piece, part in parts if piece.rank]
        uncompressed = [part for piece, part in parts if not piece.rank]
        pieces = [piece for piece in layout if piece.rank]
        residual = self._residuals.get(number)
        if residual is None:
            residual = self._residuals[number] = torch.zeros(sum(m.numel() for m in matrices))
            self._right[number] = [torch.zeros(piece.columns, piece.rank) for piece in pieces]
        errors = [
            error.view_as(matrix)
            for error, matrix in zip(
                residual.split([m.numel() for m in matrices]), matrices, strict=True
            )
        ]
        rights = self._right[number]

        first = self._scratch.floats("first", num_first(layout))
        sizes = [piece.rows * piece.rank for piece in pieces]
        factors = first.split([*sizes, *map(len, uncompressed)])
        lefts = [left.view(-1, p.rank) for left, p in zip(factors, pieces, strict=False)]
        sent = factors[len(pieces) :]
        for matrix, error, left, right in zip(matrices, errors, lefts, rights, strict=True):
            matrix += error
            self._redraw(right)
            torch.mm(matrix, right, out=left)
        for target, part in zip(sent, uncompressed, strict=True):
            target.copy_(part)
        self._add_up(first, backend)
        for part, target in zip(uncompressed, sent, strict=True):
            part.copy_(target)

        second = self._scratch.floats("second", num_second(layout))
        factors = second.split([piece.columns * piece.rank for piece in pieces])
        sums = [right.view(-1, p.rank) for right, p in zip(factors, pieces, strict=True)]
        for matrix, error, left, right in zip(matrices, errors, lefts, sums, strict=True):
            orthonormalize(left)
            torch.mm(matrix.t(), left, out=right)
            error.copy_(matrix).addmm_(left, right.t(), alpha=-1)
        self._add_up(second, backend)
        for matrix, left, summed, right in zip(matrices, lefts, sums, rights, strict=True):
            torch.mm(left, summed.t(), out=matrix)
            right.copy_(summed)
        if not is_finite(values):
            residual.zero_()

    def _add_up(self, values: Tensor, backend: ReduceBackend) -> None:
        if len(values):
            self._all_reduce.reduce(
                values,
                backend,
                ErrorFeedback.zeros(len(values), backend.size, self._all_reduce.codec),
            )

    def _redraw(self, right: Tensor) -> None:
        """Replace columns that are zero or not finite by random ones, the same on every rank."""
        norms = right.norm(dim=0)
        is_bad = ~(torch.isfinite(norms) & (norms > 0))
        if is_bad.any():
            self._num_drawn += 1
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._num_drawn)
            fresh = torch.randn(right.shape, generator=generator)
            right[:, is_bad] = fresh[:, is_bad]

    def sent_bytes(self, shapes: Sequence[Size], rank: int, num_ranks: int) -> int:
        if num_ranks == 1:
            return 0
        layout = layout_of(shapes, self._rank)
        return sum(
            self._all_reduce.sent_bytes(count, rank, num_ranks)
            for count in (num_first(layout), num_second(layout))
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return residuals and right factors, and how many columns were drawn at random."""
        if not self._residuals:
            return {}
        rights = {
            f"{number}:right:{place}": right
            for number, many in self._right.items()
            for place, right in enumerate(many)
        }
        residuals = {f"{number}:lost": residual for number, residual in self._residuals.items()}
        return {"begun": torch.tensor(self._num_drawn), **residuals, **rights}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if not state:
            return
        self._num_drawn = int(state["begun"])
        for number, layout in self._layouts.items():
            if f"{number}:lost" in state:
                self._residuals[number] = state[f"{number}:lost"]
                places = range(sum(1 for piece in layout if piece.rank))
                self._right[number] = [state[f"{number}:right:{place}"] for place in places]


def layout_of(shapes: Sequence[Size], rank: int) -> list[Piece]:
    """Choose the parameters of a bucket that are sent as products, of `rank` columns or fewer."""
    pieces = []
    for shape in shapes:
        rows: int = shape[0] if shape else 1
        columns: int = shape.numel() // max(1, rows)
        of_rank = min(rank, rows, columns)
        is_fewer = len(shape) > 1 and of_rank * (rows + columns) < rows * columns
        pieces.append(Piece(rows, columns, of_rank if is_fewer else 0))
    return pieces


def num_first(layout: Sequence[Piece]) -> int:
    """Return the number of values of the first sum: left factors and uncompressed values."""
    return sum(piece.rows * (piece.rank or piece.columns) for piece in layout)


def num_second(layout: Sequence[Piece]) -> int:
    """Return the number of values of the right factors."""
    return sum(piece.columns * piece.rank for piece in layout)


def orthonormalize(columns: Tensor) -> None:
    """Orthonormalize the columns of (n, r) in place: modified Gram-Schmidt, twice for each column.

    Columns that depend on those before become zeros; what is not finite stays so. Twice is enough
    for orthogonality to rounding.
    """
    for i in range(columns.shape[1]):
        column, before = columns[:, i], columns[:, :i]
        whole = column.norm()
        if i:
            for _ in range(2):
                column -= before @ (before.t() @ column)
        left = column.norm()
        if left <= _DEPENDENT * whole:
            column.zero_()
        else:
            column /= left
