"""TFRecord files: frames with checksums around `tf.train.Example` messages."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packing.records import RecordFiles, RecordPlace
from phalanx.data.packing.table import Part, reading
from phalanx.errors import UserError

_HEADER, _FOOTER = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8

Feature = NDArray[Any] | list[bytes]


class TfRecords(RecordFiles):
    """Features are lists: of float32, of int64, or of one image or text. Every checksum is
    compared."""

    squeezes = True
    part_word = "feature"

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
        features = parse_example(payload, where)
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


def parse_example(content: bytes, where: str) -> dict[str, Feature]:
    """Return the features of a `tf.train.Example` by name.

    Raises: UserError that begins with `where`, when it is none.
    """
    with reading(f"{where}: the record is no tf.train.Example"):
        features = example_type().FromString(content).features.feature
    return {name: _feature(features[name]) for name in sorted(features)}


def _feature(feature: Any) -> Feature:
    match feature.WhichOneof("kind"):
        case "bytes_list":
            return list(feature.bytes_list.value)
        case "float_list":
            return np.array(feature.float_list.value, np.float32)
        case "int64_list":
            return np.array(feature.int64_list.value, np.int64)
    return np.empty(0, np.float32)


@cache
def example_type() -> Any:
    """Return the class of messages `tf.train.Example`, made of its published description.

    Source: tensorflow/core/example/example.proto and feature.proto.
    """
    from google.protobuf import (  # optional dependency
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tf", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(message: Any, number: int, name: str, kind: int, of: str | None = None) -> Any:
        return message.field.add(
            number=number, name=name, type=kind, type_name=of, label=kinds.LABEL_OPTIONAL
        )

    def add_list(message: Any, name: str, kind: int, of: str | None = None) -> None:
        add(message, 1, name, kind, of).label = kinds.LABEL_REPEATED

    lists = {"bytes_list": kinds.TYPE_BYTES, "float_list": kinds.TYPE_FLOAT}
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate({**lists, "int64_list": kinds.TYPE_INT64}.items(), 1):
        add_list(file.message_type.add(name=name), "value", kind)
        add(feature, number, name, kinds.TYPE_MESSAGE, f".tf.{name}").oneof_index = 0
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry", options={"map_entry": True})
    add(entry, 1, "key", kinds.TYPE_STRING)
    add(entry, 2, "value", kinds.TYPE_MESSAGE, ".tf.Feature")
    add_list(features, "feature", kinds.TYPE_MESSAGE, ".tf.Features.FeatureEntry")
    example = file.message_type.add(name="Example")
    add(example, 1, "features", kinds.TYPE_MESSAGE, ".tf.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Example"))


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
