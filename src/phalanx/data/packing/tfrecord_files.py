"""TFRecord files: frames with checksums around `tf.train.Example` messages."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packing.protobuf import WireError, fields_of_message, varints
from phalanx.data.packing.record_files import RecordFiles, RecordPlace
from phalanx.data.packing.record_origin import Part
from phalanx.errors import UserError

_HEADER, _FOOTER = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8

Feature = NDArray[Any] | list[bytes]


class TfRecords(RecordFiles):
    """Features are lists: of float32, of int64, or of one image or text. Every checksum is
    compared."""

    squeezes = True

    def find(self, path: Path, file: IO[bytes]) -> Iterator[RecordPlace]:
        total = file.seek(0, 2)
        offset = file.seek(0)
        while header := file.read(_HEADER.size):
            where = f"{path} at byte {offset}"
            if len(header) < _HEADER.size:
                raise UserError(f"{where}: it ends in the middle of a record: it is cut off")
            size, checksum = _HEADER.unpack(header)
            if masked_crc(header[:8]) != checksum:
                raise UserError(f"{where}: there is no record, or it is damaged: no TFRecord file?")
            end = offset + _HEADER.size + size + _FOOTER.size
            if end > total:
                raise UserError(f"{where}: it ends in the middle of a record: it is cut off")
            yield RecordPlace(offset + _HEADER.size, size + _FOOTER.size, offset)
            offset = file.seek(end)

    def parse(self, content: bytes, where: str) -> Mapping[str, Any]:
        payload, (checksum,) = content[: -_FOOTER.size], _FOOTER.unpack(content[-_FOOTER.size :])
        if masked_crc(payload) != checksum:
            raise UserError(f"{where}: the record is damaged: its checksum is another")
        try:
            features = parse_example(payload)
        except WireError as error:
            raise UserError(f"{where}: the record is no tf.train.Example: {error}") from error
        if not features:
            raise UserError(f"{where}: the record is no tf.train.Example, or has no features")
        return features

    def part(self, value: Feature, where: str) -> Part:
        if isinstance(value, np.ndarray):
            return value
        if len(value) != 1:
            raise UserError(f"{where}: a list of {len(value)} byte strings, not of one")
        return image_or_text(value[0], where)


def masked_crc(content: bytes) -> int:
    """Return the CRC-32C of `content` in the form in which TFRecord keeps it."""
    from google_crc32c import value  # optional dependency

    checksum = int(value(content))
    return ((checksum >> 15 | checksum << 17) + _MASK) & 0xFFFFFFFF


def parse_example(content: bytes) -> dict[str, Feature]:
    """Return the features of a `tf.train.Example` by name.

    Raises: WireError when it is none.
    """
    found: dict[str, Feature] = {}
    for _, features in fields_of_message(content, {1: bytes}):
        for _, entry in fields_of_message(features, {1: bytes}):
            parts = dict(fields_of_message(entry, {1: bytes, 2: bytes}))
            try:
                name = parts.get(1, b"").decode()
            except UnicodeDecodeError as error:
                raise WireError("a name is not UTF-8") from error
            found[name] = _feature(parts.get(2, b""))
    return found


def _feature(content: bytes) -> Feature:
    for kind, values in fields_of_message(content, {1: bytes, 2: bytes, 3: bytes}):
        match kind:
            case 1:
                return [item for _, item in fields_of_message(values, {1: bytes})]
            case 2:
                return _numbers(values, np.dtype("<f4"))
            case 3:
                return _numbers(values, None)
    return np.empty(0, np.float32)


def _numbers(content: bytes, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """Numbers of a list, packed or one by one. dtype: of their bytes; None: varints."""
    parts = [np.empty(0, dtype or np.int64)]
    for _, item in fields_of_message(content, {1: object}):
        if isinstance(item, int):
            parts.append(np.array([item], np.uint64).view(np.int64))
        elif dtype is None:
            parts.append(varints(item))
        elif len(item) % dtype.itemsize:
            raise WireError("a list of numbers is cut off")
        else:
            parts.append(np.frombuffer(item, dtype))
    return np.concatenate(parts)


IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF", b"II*\0", b"MM\0*")
"""First bytes of the files of images."""


def image_or_text(content: bytes, where: str) -> Part:
    """Return an image's file as it is, else text. Raises: UserError when it is neither."""
    if content.startswith(IMAGES):
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UserError(
            f"{where}: {len(content):,} bytes are neither an image nor text\nleave them out with "
            "--inputs, or pack what a function yields, my_data.py:samples"
        ) from None
