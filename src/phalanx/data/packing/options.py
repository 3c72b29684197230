"""Options for reading what is packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phalanx.errors import UserError
from phalanx.records.configuration import check_at_least

Kind = Literal[
    "images", "idx", "npy", "csv", "jsonl", "parquet", "arrow", "hdf5", "tar", "tfrecord", "lmdb",
    "function",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OriginOptions:
    """Options for reading an origin. Parts are columns of a table, data sets of an HDF5 file,
    features of a record, endings of a tar's members."""

    kind: Kind | None = None
    """None: by looking at the files."""
    inputs: tuple[str, ...] = ()
    """Parts that are inputs; none: all but the target."""
    target: str | None = None
    decode: bool = False
    """Images become arrays; else their files are kept as they are."""
    size: tuple[int, int] | None = None
    """(height, width) that images are brought to, which decodes them."""
    classes: int | None = None
    """How many the target has; 0: none, it is a quantity; None: as many as there are."""
    separator: str | None = None
    """Of the values in a row of a CSV; None: what gives its header most names."""
    decimal: Literal[".", ","] = "."
    """Sets off the decimals of numbers in a CSV."""

    def __post_init__(self) -> None:
        check_at_least(self, 0, "classes")
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            raise UserError(
                f"--separator takes one character, or \\t for a tab, not {self.separator!r}"
            )
