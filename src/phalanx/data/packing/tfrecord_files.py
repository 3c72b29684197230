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
                raise UserError(f"{where}: no record, or damaged: is this a TFRecord file?")
            end = offset + _HEADER.size + size + _FOOTER.size
            if end > total:
                raise UserError(f"{where}: it ends in the middle of a record: it is cut off")
            yield RecordPlace(offset + _HEADER.size, size + _FOOTER.size, offset)
            offset = file.seek(end)

    def parse(self, content: bytes, where: str) -> Mapping[str, Any]:
        payload, (checksum,) = content[: -_FOOTER.size], _FOOTER.unpack(content[-_FOOTER.size :])
        if masked_crc(payload) != checksum:
            raise UserError(f"{where}: the record is damaged: its checksum differs")
        features = parse_example(payload, where)
        if not features:
            raise UserError(f"{where}: the record is not a tf.train.Example, or has no features")
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
    with reading(f"{where}: the record is not a tf.train.Example"):
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


_EXAMPLE = """
name: "example.proto" package: "tf" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: ".tf.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".tf.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".tf.Int64List" oneof_index: 0 } }
message_type { name: "Features"
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: ".tf.Feature" } }
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".tf.Features.FeatureEntry" } }
message_type { name: "Example" field { name: "features" number: 1 type_name: ".tf.Features" } }
"""
"""Source: tensorflow/core/example/example.proto and feature.proto."""


@cache
def example_type() -> Any:
    """Return the class of messages `tf.train.Example`, made of its published description."""
    from google.protobuf import (  # optional dependency
        descriptor_pb2,
        descriptor_pool,
        message_factory,
        text_format,
    )

    file = text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto())
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
            "--inputs, or pack the samples of a function, my_data.py:samples"
        ) from None
