"""Columns of Arrow tables as NumPy arrays: every value as it is, or refused by name.

Files of tables and tables of a program are read by these functions alone, so that both are taken or
refused alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import UserError

TEXT = np.dtype(object)
"""Stands for text, which no dtype of numbers holds."""

LARGEST_EXACT = 2**24
"""Up to here float32 holds every whole number."""


def is_index(name: str) -> bool:
    """Return whether a column holds the index that pandas wrote beside the columns of a table."""
    return not name.strip() or name.startswith(("Unnamed: ", "__index_level_"))


def is_dataset(data: object) -> bool:
    """Return whether `data` is a `datasets.Dataset` of Hugging Face, without importing that."""
    is_theirs = type(data).__module__.startswith("datasets.")
    return is_theirs and all(hasattr(data, name) for name in ("with_format", "features", "__len__"))


def column_dtype(kind: Any, title: str) -> np.dtype[Any]:
    """Return the dtype of a column of this Arrow type, or of the numbers in its lists.

    Decimals without places are int64, others float64, the nearest to what is written.
    Raises: UserError that begins with `title`, when they are neither numbers nor text.
    """
    from pyarrow import types

    inner = kind
    while (next_kind := _inner(inner)) is not None:
        inner = next_kind
    if types.is_decimal(inner):
        return np.dtype(np.int64 if inner.scale <= 0 else np.float64)
    if types.is_boolean(inner) or types.is_integer(inner) or types.is_floating(inner):
        dtype: np.dtype[Any] = np.dtype(inner.to_pandas_dtype())
        return dtype
    is_text = types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)
    if is_text and not _is_list(kind):
        return TEXT
    if types.is_null(inner):
        raise UserError(f"{title} has no value in any row")
    raise UserError(f"{title} holds {kind}, neither numbers nor text")


def common_dtype(dtypes: Mapping[str, np.dtype[Any]], title: str) -> np.dtype[Any]:
    """Return the dtype that holds what all of `dtypes`, by file, hold.

    Raises: UserError naming two files of which no dtype holds both.
    """
    (first, found), *rest = dtypes.items()
    for name, dtype in rest:
        both = promoted(found, dtype)
        if both is None:
            raise UserError(
                f"{title} is {_spoken(dtype)} in {name}, and {_spoken(found)} in {first}: no type "
                "holds both\nwrite the files again with one type"
            )
        found, first = both, first if both == found else name
    return found


def promoted(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the dtype that holds what both hold; None for numbers and text, or whole numbers that
    only floats could hold, with other digits."""
    if (one == TEXT) != (other == TEXT):
        return None
    both = np.result_type(one, other)
    return None if both.kind == "f" and "f" not in (one.kind, other.kind) else both


def column_array(column: Any, title: str) -> NDArray[Any]:
    """Return a column as (n, …) numbers, lists of its rows being the other dims, or as (n,) text.

    Raises: UserError that begins with `title` and names the row, counted from 0, when a value is
            missing or lists differ in length.
    """
    import pyarrow as pa
    from pyarrow import compute

    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    dtype, array = column_dtype(column.type, title), _decoded(column)
    shape, per_row = [len(column)], 1
    while _is_list(array.type):
        _check_values(array, title, per_row)
        lengths = compute.list_value_length(array).to_numpy(zero_copy_only=False)
        unlike = np.flatnonzero(lengths != lengths[:1])
        if unlike.size:
            raise UserError(
                f"{title} has lists of differing lengths: {lengths[0]} in row 0, "
                f"{lengths[unlike[0]]} in row {unlike[0] // per_row}"
            )
        shape.append(int(lengths[0]) if len(lengths) else 0)
        per_row *= shape[-1]
        array = _decoded(array.flatten())
    _check_values(array, title, per_row)
    if isinstance(column.type, pa.FixedShapeTensorType):
        tensors: NDArray[Any] = column.to_numpy_ndarray()
        return tensors
    return _values(array, dtype, title).reshape(shape)


def check_rounded(
    name: str, values: NDArray[Any], dtype: np.dtype[Any], notes: list[str]
) -> NDArray[Any]:
    """Return `values` in `dtype`; add a note, once for a name, on whole numbers that it rounds."""
    packed = values.astype(dtype, copy=False)
    if dtype.kind != "f" or values.dtype.kind not in "iu":
        return packed
    rounded = np.flatnonzero(packed.astype(np.longdouble) != values.astype(np.longdouble))
    if rounded.size and not any(note.startswith(f"{name} holds whole") for note in notes):
        value, became = values.flat[rounded[0]], packed.flat[rounded[0]]
        notes.append(rounded_note(name, int(value), float(became), dtype))
    return packed


def rounded_note(name: str, value: int, became: float, dtype: np.dtype[Any]) -> str:
    """Return the sentence about whole numbers that became others."""
    return (
        f"{name} has whole numbers that {dtype} rounds, such as {value}, which is packed as "
        f"{became:.0f}"
    )


def listed(names: Iterable[str]) -> str:
    """Return the first names, for a message."""
    found = list(names)
    return (", ".join(found[:12]) + (", …" if len(found) > 12 else "")) or "nothing"


def _spoken(dtype: np.dtype[Any]) -> str:
    return "text" if dtype == TEXT else dtype.name


def _inner(kind: Any) -> Any:
    """Return the type of the values of a list, dictionary or extension; None of another type."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return kind.value_type if _is_list(kind) or pa.types.is_dictionary(kind) else None


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        or types.is_list_view(kind) or types.is_large_list_view(kind)
    )  # fmt: skip


def _decoded(array: Any) -> Any:
    """Return the values of an extension or a dictionary."""
    import pyarrow as pa

    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        else:
            return array


def _check_values(array: Any, title: str, per_row: int) -> None:
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False))) // per_row
        raise UserError(f"{title} has no value in row {row}\nmend it, or leave that row out")


def _values(array: Any, dtype: np.dtype[Any], title: str) -> NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_decimal(array.type):
        try:  # parse as text to the nearest float; Arrow's cast may miss it by a bit
            whole = dtype.kind == "i"
            array = array.cast(pa.int64()) if whole else array.cast(pa.string()).cast(pa.float64())
        except pa.ArrowInvalid as error:
            raise UserError(f"{title} holds {array.type} out of the range of int64") from error
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values
