"""Dtype and shape of a field, the words and images in it, while its rows are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.columns import promoted
from phalanx.data.packing.image_form import Peek, peek
from phalanx.data.packing.table import TARGETS, Known, Part, Values
from phalanx.errors import UserError

_SPOKEN = {"numbers": "numbers", "bytes": "an image", "str": "text"}


class FieldScan:
    """Kind, dtype and shape of a field in all rows that were added."""

    def __init__(self, name: str, known: Known | None = None) -> None:
        self.name = name
        self.dtype = None if known is None else known.dtype
        self.shape: tuple[int, ...] | None = None if known is None else known.shape
        """None: rows differ."""
        self.words: list[str] = []
        self.numbers: list[NDArray[Any]] = []
        """Targets, (n, …) each."""
        self.peeks: list[Peek] = []
        self.max_bytes = 0
        """Bytes of the largest part, or of the largest image's file."""
        self._kind: str | None = None

    def add(self, values: Values, where: Callable[[int], str]) -> None:
        """Add the field of several rows. where: returns the location of one, by its position.

        Raises: UserError that begins with a location, for a part of another kind than before.
        """
        if isinstance(values, np.ndarray):
            if len(values):
                self._add_numbers(values[0], where, 0, values)
            return
        for position, part in enumerate(values):
            self._add(part, where, position)

    def _add(self, part: Part, where: Callable[[int], str], position: int) -> None:
        if isinstance(part, np.ndarray):
            self._add_numbers(part, where, position, part[None])
        elif isinstance(part, str):
            self._check_kind("str", where, position)
            self._add_word(part, where, position)
        else:
            self._check_kind("bytes", where, position)
            self.peeks.append(peek(part, where(position)))
            self.max_bytes = max(self.max_bytes, 0 if isinstance(part, Path) else len(part))

    def _check_kind(self, kind: str, where: Callable[[int], str], position: int) -> None:
        if self._kind not in (None, kind):
            assert self._kind is not None
            raise UserError(
                f"{where(position)}: it holds {_SPOKEN[kind]}, and {_SPOKEN[self._kind]} before"
            )
        self._kind = kind

    def _add_word(self, word: str, where: Callable[[int], str], position: int) -> None:
        if self.name != TARGETS:
            raise UserError(
                f"{where(position)}: the text {word[:40]!r} is no array of numbers\nonly a target "
                "can be text: name it with --target, or choose parts with --inputs"
            )
        self.words.append(word)

    def _add_numbers(
        self, one: NDArray[Any], where: Callable[[int], str], position: int, rows: NDArray[Any]
    ) -> None:
        """one: the first of `rows`, (n, …)."""
        is_first = self._kind is None and self.dtype is None
        self._check_kind("numbers", where, position)
        if one.dtype.kind not in "biufc":
            raise UserError(f"{where(position)}: an array of {one.dtype} is not one of numbers")
        self.max_bytes = max(self.max_bytes, one.nbytes)
        if is_first:
            self.dtype, self.shape = one.dtype, one.shape
        elif self.dtype is not None and self.dtype != one.dtype:
            dtype = promoted(self.dtype, one.dtype)
            if dtype is None:
                raise UserError(
                    f"{where(position)}: it holds {one.dtype}, and {self.dtype} before: no type "
                    "holds both"
                )
            self.dtype = dtype
        if self.shape is not None and one.shape != self.shape:
            if one.ndim != len(self.shape):
                raise UserError(
                    f"{where(position)}: its shape is {one.shape}, and {self.shape} before"
                )
            self.shape = None
        if self.name == TARGETS and one.ndim < 2:
            self.numbers.append(rows)
