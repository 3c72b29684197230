"""Columns of Arrow: of Parquet and Arrow files, of tables and data sets of a program."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import numpy as np

from phalanx.data.columns import TEXT, column_array, column_dtype, common_dtype, listed
from phalanx.data.packing.options import OriginOptions
from phalanx.data.packing.table import (
    BlockTable,
    Known,
    Values,
    block_of,
    fingerprint_of,
    reading,
    text_of,
)
from phalanx.data.unpacked import ARRAY_BYTES, check_unpacked
from phalanx.errors import UserError

ROWS_OF_A_BLOCK = 4096
"""Rows of a block of a table in memory."""

MAX_ROWS = 2**16
"""Rows that are read at once, where the values of a dictionary stand for them."""

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_MAGIC = b"ARROW1"


class RowGroup(NamedTuple):
    """Rows that are read together."""

    source: str
    """The file."""
    title: str
    """The place in it, for people."""
    types: Mapping[str, Any]
    """Arrow's type of each column."""
    num_rows: int
    read: Callable[[str], Any]
    """Return a column as Arrow's."""


class ColumnTable(BlockTable):
    """Columns of numbers, of lists of equal length, of text, or of images (their bytes, or a struct
    with the field `bytes`), each of the type that holds the values of all files."""

    part_word = "column"
    needs_target = True
    stacks_one = True
    parses_words = False

    def __init__(
        self,
        text: str,
        groups: Iterable[RowGroup],
        *,
        fingerprint: str,
        class_names: Mapping[str, Sequence[str]] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """class_names: by column, where the source names classes.

        Raises: UserError when there are no rows.
        """
        super().__init__()
        self.text, self.fingerprint = text, fingerprint
        self._class_names, self._close = class_names or {}, close
        self._groups = [group for group in groups if group.num_rows]
        if not self._groups:
            raise UserError(f"{text} has no rows")
        self.names = [*self._groups[0].types]
        self.blocks, start = [], 0
        for group in self._groups:
            self.blocks.append(range(start, start + group.num_rows))
            start += group.num_rows
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def packed_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        return np.dtype(np.float32) if dtype == np.float64 else dtype

    def choose(self, options: OriginOptions) -> tuple[list[str], str | None]:
        inputs, target = super().choose(options)
        if not options.inputs:
            self._check_names()
        if options.classes is None and target is not None and target in self._class_names:
            self.classes = [*self._class_names[target]]
        return inputs, target

    def known(self, name: str) -> Known | None:
        from pyarrow import types

        kind, dtype = self._type(self._groups[0], name), self._dtype(name)
        if dtype is None or dtype == TEXT:
            return None
        if types.is_primitive(kind) or types.is_decimal(kind):
            return Known(dtype, ())
        if name not in self._shapes:
            self._shapes[name] = np.asarray(self._values(self._groups[0], name)).shape[1:]
        return Known(dtype, self._shapes[name])

    def read_block(self, block: int, names: Sequence[str]) -> Mapping[str, Values]:
        return {name: self._values(self._groups[block], name) for name in names}

    def where(self, row: int, name: str) -> str:
        block = block_of(self.blocks, row)
        title = self._groups[block].title
        return f"{title}, row {row - self.blocks[block].start} of it, column {name!r}"

    def close(self) -> None:
        self._close()

    def _check_names(self) -> None:
        for group in self._groups:
            more = [name for name in group.types if name not in self.names]
            if more:
                first = self._groups[0].source.rpartition("/")[-1]
                raise UserError(
                    f"{group.source} has a column {more[0]!r}, which {first} lacks\nchoose columns "
                    "with --inputs"
                )

    def _type(self, group: RowGroup, name: str) -> Any:
        if name not in group.types:
            raise UserError(f"{group.source} has no column {name!r}: it has {listed(group.types)}")
        return group.types[name]

    def _dtype(self, name: str) -> np.dtype[Any] | None:
        """Return the dtype that holds a column of all files; None of images.

        Raises: UserError naming two files when there is none, or the file that lacks the column.
        """
        if name not in self._dtypes:
            types = {group.source: self._type(group, name) for group in self._groups}
            if any(map(holds_bytes, types.values())):
                return None
            self._dtypes[name] = common_dtype(
                {
                    source: column_dtype(kind, f"{source}, column {name!r}")
                    for source, kind in types.items()
                },
                f"column {name!r}",
            )
        return self._dtypes[name]

    def _values(self, group: RowGroup, name: str) -> Values:
        title = f"{group.title}, column {name!r}"
        dtype = self._dtype(name)
        with reading(f"{group.title} cannot be read"):
            column = group.read(name)
            if dtype is None:
                return _images(column, title)
            values = column_array(column, title)
        return values.tolist() if dtype == TEXT else values.astype(dtype, copy=False)


def table_of_program(rows: Any, schema: Any, title: str, fingerprint: str) -> ColumnTable:
    """Return a table of Arrow, or a data set of Hugging Face in that format, read by need."""
    types = {field.name: field.type for field in schema}
    select = rows.select_columns if hasattr(rows, "select_columns") else rows.select

    def group(start: int) -> RowGroup:
        stop = min(start + ROWS_OF_A_BLOCK, len(rows))
        place = f"{title} from row {start} on"
        return RowGroup(
            title, place, types, stop - start, lambda name: select([name])[start:stop].column(name)
        )

    groups = map(group, range(0, len(rows), ROWS_OF_A_BLOCK))
    return ColumnTable(title, groups, fingerprint=fingerprint, class_names=class_names(schema))


def class_names(schema: Any) -> dict[str, list[str]]:
    """Return the names of classes by column, where Hugging Face wrote them into a schema."""
    content = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = msgspec.json.decode(content, type=_Metadata).info.features
    except msgspec.DecodeError:
        return {}
    named = {name: it.get("names") for name, it in features.items() if isinstance(it, dict)}
    return {name: [*map(str, names)] for name, names in named.items() if isinstance(names, list)}


class _Info(msgspec.Struct):
    features: dict[str, Any] = {}


class _Metadata(msgspec.Struct):
    info: _Info = msgspec.field(default_factory=_Info)


def check_words(column: Any, title: str) -> None:
    """Raises: UserError for a dictionary of which few long words stand in many rows."""
    from pyarrow import compute, types

    chunks = column.chunks if hasattr(column, "chunks") else [column]
    for chunk in chunks:
        if types.is_dictionary(chunk.type) and not types.is_primitive(chunk.type.value_type):
            sizes = compute.binary_length(chunk.dictionary).take(chunk.indices)
            check_unpacked(compute.sum(sizes).as_py() or 0, chunk.nbytes, title)


def holds_bytes(kind: Any) -> bool:
    """Return whether a column of this type may hold images."""
    from pyarrow import types

    if types.is_struct(kind):
        return any(field.name == "bytes" for field in kind)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _images(column: Any, title: str) -> Values:
    if not holds_bytes(column.type):
        raise UserError(f"{title} holds {column.type}, but elsewhere images")
    images = [v["bytes"] if isinstance(v, dict) else v for v in column.to_pylist()]
    for row, image in enumerate(images):
        if not image:
            raise UserError(f"{title}, row {row}: no image")
    return images


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
                    f"{path} is compressed with an unknown size when unpacked: refused\nwrite it "
                    "again with compression=None, or as Parquet"
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
