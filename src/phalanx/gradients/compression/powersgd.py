"""PowerSGD: gradients as products of two thin matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Size, Tensor

from phalanx.comm.layout import starts_of
from phalanx.gradients.compression.codec import Float32
from phalanx.gradients.compression.codec_compressor import CodecAllReduce, ErrorFeedback
from phalanx.gradients.compression.compressor import Compressor, ReduceBackend
from phalanx.gradients.compression.scratch import Scratch, is_finite

_DEPENDENT = 1e-5
"""A column is linearly dependent on those before it if less than this part of its norm remains:
float32 leaves rounding errors of that size."""


@dataclass(frozen=True, kw_only=True)
class _Matrix:
    """A parameter of the bucket that is sent as a product."""

    start: int
    rows: int
    columns: int
    rank: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Layout of a bucket: its matrices, and the values between them."""

    count: int
    matrices: tuple[_Matrix, ...]

    @property
    def uncompressed(self) -> list[slice]:
        """Slices of values that are sent uncompressed."""
        starts = [0, *(matrix.stop for matrix in self.matrices)]
        stops = [*(matrix.start for matrix in self.matrices), self.count]
        return [slice(a, b) for a, b in zip(starts, stops, strict=True) if a < b]

    @property
    def num_first(self) -> int:
        """Number of values of the first sum: the left factors and the uncompressed values."""
        whole = self.count - sum(m.stop - m.start for m in self.matrices)
        return whole + sum(m.rows * m.rank for m in self.matrices)

    @property
    def num_second(self) -> int:
        """Number of values of the right factors."""
        return sum(m.columns * m.rank for m in self.matrices)


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
        self._all_reduce = CodecAllReduce(Float32())
        self._layouts: dict[int, _Layout] = {}
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
            self._reduce(number, self._layouts[number], working, backend)

    def _reduce(self, number: int, layout: _Layout, values: Tensor, backend: ReduceBackend) -> None:
        residual = self._residuals.get(number)
        if residual is None:
            residual = self._residuals[number] = torch.zeros(
                sum(m.stop - m.start for m in layout.matrices)
            )
            self._right[number] = [torch.zeros(m.columns, m.rank) for m in layout.matrices]
        matrices = list(_matrices(layout, values, residual))
        rights = self._right[number]

        first = self._scratch.floats("first", layout.num_first)
        lefts = list(_factors([(m.rows, m.rank) for m in layout.matrices], first))
        for (matrix, error), left, right in zip(matrices, lefts, rights, strict=True):
            matrix += error
            self._redraw(right)
            torch.mm(matrix, right, out=left)
        _gather(layout, values, first)
        self._add_up(first, backend)
        _scatter(layout, values, first)

        second = self._scratch.floats("second", layout.num_second)
        sums = list(_factors([(m.columns, m.rank) for m in layout.matrices], second))
        for (matrix, error), left, right in zip(matrices, lefts, sums, strict=True):
            orthonormalize(left)
            torch.mm(matrix.t(), left, out=right)
            error.copy_(matrix).addmm_(left, right.t(), alpha=-1)
        self._add_up(second, backend)
        for (matrix, _), left, summed, right in zip(matrices, lefts, sums, rights, strict=True):
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
            for count in (layout.num_first, layout.num_second)
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
                places = range(len(layout.matrices))
                self._right[number] = [state[f"{number}:right:{place}"] for place in places]


def layout_of(shapes: Sequence[Size], rank: int) -> _Layout:
    """Choose the parameters of a bucket that are sent as products, of `rank` columns or fewer."""
    starts = starts_of([shape.numel() for shape in shapes])
    matrices = []
    for start, shape in zip(starts, shapes, strict=False):
        rows: int = shape[0] if shape else 1
        columns: int = shape.numel() // max(1, rows)
        of_rank = min(rank, rows, columns)
        if len(shape) > 1 and of_rank * (rows + columns) < rows * columns:
            matrices.append(_Matrix(start=start, rows=rows, columns=columns, rank=of_rank))
    return _Layout(count=starts[-1], matrices=tuple(matrices))


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


def _matrices(layout: _Layout, values: Tensor, residual: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the values and the residual of each matrix."""
    at = 0
    for m in layout.matrices:
        length = m.stop - m.start
        yield values[m.start : m.stop].view(m.rows, -1), residual[at : at + length].view(m.rows, -1)
        at += length


def _factors(shapes: Sequence[tuple[int, int]], memory: Tensor) -> Iterator[Tensor]:
    """Yield views of `shapes`, one after the other in `memory`."""
    at = 0
    for rows, columns in shapes:
        yield memory[at : at + rows * columns].view(rows, columns)
        at += rows * columns


def _gather(layout: _Layout, values: Tensor, first: Tensor) -> None:
    """Copy the uncompressed values behind the factors."""
    at = sum(m.rows * m.rank for m in layout.matrices)
    for part in layout.uncompressed:
        first[at : at + part.stop - part.start] = values[part]
        at += part.stop - part.start


def _scatter(layout: _Layout, values: Tensor, first: Tensor) -> None:
    at = sum(m.rows * m.rank for m in layout.matrices)
    for part in layout.uncompressed:
        values[part] = first[at : at + part.stop - part.start]
        at += part.stop - part.start
