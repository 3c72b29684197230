"""Options for reading what is packed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from phalanx.errors import UserError
from phalanx.records.configuration import check_counts

Kind = Literal[
    "images", "idx", "npy", "csv", "jsonl", "parquet", "arrow", "hdf5", "tar", "tfrecord", "lmdb",
    "function",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OriginOptions:
    """Options for reading an origin. Parts are columns of a table, data sets of an HDF5 file,
    features of a record, endings of a tar's members."""

    kind: Kind | None = None
    """Kind of the source. Default: detected from its files."""
    inputs: tuple[str, ...] = ()
    """Columns, data sets, features or members to use as inputs. Repeatable. Default: all but the
    target."""
    target: str | None = None
    """Column, data set, feature or member to use as the target."""
    decode: bool = False
    """Pack images as arrays instead of their PNG or JPEG files."""
    size: str | None = None
    """Resize images to HEIGHTxWIDTH; implies --decode."""
    classes: int | None = None
    """Number of classes of the target, needed if there are more than 1,000 or if some have no
    sample; 0: the target is a quantity, not a class. Default: the number found."""
    separator: str | None = None
    """Separator of values in CSV, such as ';'. Default: comma, semicolon or tab, by the header."""
    decimal: Literal[".", ","] = "."
    """Decimal mark in a CSV file. Default: a point."""

    def __post_init__(self) -> None:
        check_counts(self, 0, "classes")
        if self.separator not in (None, r"\t") and (
            len(self.separator) != 1 or self.separator in '"\r\n'
        ):
            raise UserError(
                f"--separator takes one character, or \\t for a tab, not {self.separator!r}"
            )
        if self.size is not None and not _SIZE.fullmatch(self.size):
            raise UserError(f"--size takes HEIGHTxWIDTH, such as 224x224, not {self.size!r}")

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width that images are brought to."""
        match = _SIZE.fullmatch(self.size or "")
        return (int(match[1]), int(match[2])) if match else None


_SIZE = re.compile(r"0*([1-9][0-9]*)[xX]0*([1-9][0-9]*)")
