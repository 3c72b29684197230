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
    """Kind of the source. Default: by looking at its files."""
    inputs: tuple[str, ...] = ()
    """Columns, data sets, features or members that are inputs. Repeatable. Default: all but the
    target."""
    target: str | None = None
    """The column, data set, feature or member that is the target."""
    decode: bool = False
    """Pack images as arrays instead of their PNG or JPEG files."""
    size: str | None = None
    """HEIGHTxWIDTH that images are brought to; decodes them."""
    classes: int | None = None
    """Number of classes of the target, where there are more than 1,000 or some without a sample; 0:
    none, the target is a quantity. Default: as many as there are."""
    separator: str | None = None
    """Separator of values in a CSV, as in ';'. Default: comma, semicolon or tab, by the header."""
    decimal: Literal[".", ","] = "."
    """Mark of decimals in a CSV. Default: a point."""

    def __post_init__(self) -> None:
        check_counts(self, 0, "classes")
        if self.separator not in (None, r"\t") and (
            len(self.separator) != 1 or self.separator in '"\r\n'
        ):
            raise UserError(
                f"--separator takes one character, or \\t for a tab, not {self.separator!r}"
            )
        if self.size is not None and not _SIZE.fullmatch(self.size):
            raise UserError(f"--size takes HEIGHTxWIDTH, as in 224x224, not {self.size!r}")

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width that images are brought to."""
        match = _SIZE.fullmatch(self.size or "")
        return (int(match[1]), int(match[2])) if match else None


_SIZE = re.compile(r"0*([1-9][0-9]*)[xX]0*([1-9][0-9]*)")
