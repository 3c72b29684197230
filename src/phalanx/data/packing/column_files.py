"""Parquet files, and Arrow files of IPC, as tables of columns."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from phalanx.data.packing.column_table import (
    ColumnTable,
    RowGroup,
    check_words,
    class_names,
)
from phalanx.data.packing.table import fingerprint_of, reading, text_of
from phalanx.data.unpacked import ARRAY_BYTES, check_unpacked
from phalanx.errors import UserError

MAX_ROWS = 2**16
"""Rows that are read at once, where the values of a dictionary stand for them."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def read_parquet(paths: Sequence[Path]) -> ColumnTable:
    """Return one file, or several one after the other, a row group at a time. Folders between them
    that are named KEY=VALUE are columns, too.

    Raises: UserError when a file is damaged, or there are no rows.
    """
    from pyarrow import parquet  # optional dependency

    opened = ExitStack()
    partitions, groups, names = _partitions(paths), list[RowGroup](), dict[str, list[str]]()
    try:
        for path in paths:
            with reading(f"{path} cannot be read as Parquet"):
                file = opened.enter_context(parquet.ParquetFile(path))
                schema = file.schema_arrow
            more = partitions[path]
            types = {name: schema.field(name).type for name in schema.names}
            types |= {name: value.type for name, value in more.items()}
            names = names or class_names(schema)
            for number in range(file.num_row_groups):
                title = f"{path} row group {number}"
                rows = file.metadata.row_group(number).num_rows
                read = partial(_read_row_group, file, number, title, more, rows)
                groups.append(RowGroup(str(path), title, types, rows, read))
        return ColumnTable(
            text_of(paths), groups, fingerprint=fingerprint_of(paths), class_names=names,
            close=opened.close,
        )  # fmt: skip
    except BaseException:
        opened.close()
        raise


def read_arrow(paths: Sequence[Path]) -> ColumnTable:
    """Return one file of Arrow IPC, of the file or the stream format, or several one after the
    other. They are mapped into memory.

    Raises: UserError when a file is damaged or compressed, or there are no rows.
    """
    groups, names = list[RowGroup](), dict[str, list[str]]()
    for path in paths:
        with reading(f"{path} cannot be read as Arrow"):
            for number, batch in enumerate(_batches(path)):
                types = {field.name: field.type for field in batch.schema}
                names = names or class_names(batch.schema)
                title = f"{path} batch {number}"
                read = partial(_read_batch, batch, title)
                groups.append(RowGroup(str(path), title, types, batch.num_rows, read))
    fingerprint = fingerprint_of(paths)
    return ColumnTable(text_of(paths), groups, fingerprint=fingerprint, class_names=names)


def _read_row_group(
    file: Any, number: int, title: str, partitions: Mapping[str, Any], rows: int, name: str
) -> Any:
    import pyarrow as pa

    if name in partitions:
        return pa.repeat(partitions[name], rows)
    title = f"{title}, column {name!r}"
    meta = file.metadata.row_group(number)
    leaves = [meta.column(i) for i in range(meta.num_columns)]
    leaves = [leaf for leaf in leaves if leaf.path_in_schema.split(".")[0] == name.split(".")[0]]
    packed = sum(leaf.total_compressed_size for leaf in leaves)
    size = sum(max(leaf.total_uncompressed_size, 8 * leaf.num_values) for leaf in leaves)
    check_unpacked(size, packed, title)
    if not any(leaf.has_dictionary_page for leaf in leaves):
        return file.read_row_group(number, columns=[name]).column(name)
    # A word of the dictionary may stand in every row: its size counts as often.
    step = min(MAX_ROWS, max(1, ARRAY_BYTES // max(1, size)))
    batches, size = [], 0
    for batch in file.iter_batches(step, row_groups=[number], columns=[name]):
        batches.append(batch)
        size += batch.nbytes
        check_unpacked(size, packed, title)
    return pa.Table.from_batches(batches).column(name)


def _partitions(paths: Sequence[Path]) -> dict[Path, Mapping[str, Any]]:
    """Return, by file, the columns that the names of its folders make: those that differ."""
    import pyarrow as pa

    found: dict[Path, dict[str, str]] = {}
    for path in paths:
        parts = (folder.name.partition("=") for folder in reversed(path.parents))
        found[path] = {unquote(key): unquote(value) for key, equals, value in parts if equals}
    keys = dict.fromkeys(key for values in found.values() for key in values)
    columns: dict[Path, dict[str, Any]] = {path: {} for path in paths}
    for key in keys:
        words = {path: values[key] for path, values in found.items() if key in values}
        if len({*words.values()}) < 2 and len(words) == len(paths):
            continue
        are_whole = all(
            re.fullmatch(r"-?[0-9]{1,18}", word) for word in words.values() if word != _NO_VALUE
        )
        for path, word in words.items():
            kind = pa.int64() if are_whole else pa.string()
            value = None if word == _NO_VALUE else int(word) if are_whole else word
            columns[path][key] = pa.scalar(value, kind)
    return {**columns}


_MAGIC = b"ARROW1"


def _batches(path: Path) -> Iterator[Any]:
    """Yield the batches of a file, of the memory that maps it."""
    import pyarrow as pa

    _check_compression(path)
    source = pa.memory_map(str(path))
    if source.read(len(_MAGIC)) == _MAGIC:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield _validated(reader.get_batch(number))
        return
    source.seek(0)
    yield from map(_validated, pa.ipc.open_stream(source))


def _validated(batch: Any) -> Any:
    batch.validate(full=True)  # offsets of a damaged file would lead out of its memory
    return batch


def _check_compression(path: Path) -> None:
    """Raises: UserError for batches that are compressed: what they unpack to is known too late.

    Source: Apache Arrow, `format/Message.fbs`; FlatBuffers, "Internals".
    """
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        source.seek(8 if source.read(len(_MAGIC)) == _MAGIC else 0)
        for message in pa.ipc.MessageReader.open_stream(source):
            meta = message.metadata.to_pybytes()
            header = _table(meta, _slot(meta, _table(meta, 0), 2))
            if message.type == "dictionary batch":
                header = _table(meta, _slot(meta, header, 1))
            if "batch" in message.type and _slot(meta, header, 3):
                raise UserError(
                    f"{path} is compressed, and how much it unpacks to is known too late: refused"
                    "\nwrite it again with compression=None, or as Parquet"
                )


def _table(content: bytes, at: int) -> int:
    """Return the offset of the table to which the offset at `at` leads."""
    return at + int(struct.unpack_from("<I", content, at)[0])


def _slot(content: bytes, table: int, field: int) -> int:
    """Return the offset of a field of a table; 0 where it is absent."""
    entries = table - int(struct.unpack_from("<i", content, table)[0])
    size = struct.unpack_from("<H", content, entries)[0]
    if size <= 4 + 2 * field:
        return 0
    offset = int(struct.unpack_from("<H", content, entries + 4 + 2 * field)[0])
    return table + offset if offset else 0


def _read_batch(batch: Any, title: str, name: str) -> Any:
    column = batch.column(name)
    check_words(column, f"{title}, column {name!r}")
    return column
