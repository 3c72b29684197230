"""Records one after the other: JSON lines, TFRecord; values by key: LMDB."""

import base64
import gzip
import io
import json
import pickle
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from phalanx.data.packed.pack import Pack
from phalanx.data.packing import tfrecord_files
from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.origin import Origin, OriginOptions
from phalanx.data.packing.run import PackingOptions, pack
from phalanx.errors import UserError
from tests.data.packing.read import everything, packed, png

NUMBERS = [0, 1, 127, 128, 300, 2**40, 2**63 - 1, -1, -(2**63)]


def lines(path: Path, records: list[Any]) -> str:
    text = "\n\n".join(map(json.dumps, records)) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def shapes(origin: Origin) -> dict[str, tuple[str, list[int] | None]]:
    return {field.name: (field.dtype, field.shape) for field in origin.fields}


@pytest.mark.parametrize("ending", ["jsonl", "ndjson.gz"])
def test_json_lines(tmp_path: Path, ending: str) -> None:
    records = [
        {"id": i, "places": [[i, 0.5], [i, 1]], "kind": "ba"[i % 2], "energy": i, "note": None}
        for i in range(8)
    ]
    records[3]["energy"] = 2.5
    source = lines(tmp_path / f"t.{ending}", records)
    options = OriginOptions(inputs=("places",), target="kind")
    with closing(find_origin(source, options)) as origin:
        assert shapes(origin) == {"inputs": ("float32", [2, 2]), "targets": ("int64", [])}
        assert origin.classes == ["a", "b"]
        inputs, targets = everything(origin)
        assert [part[0, 0] for part in inputs] == list(range(8))
        assert targets.tolist() == [1, 0] * 4
        train, validation = packed(origin, tmp_path / "p")
        assert (train.num_samples, validation.num_samples) == (6, 2)
    options = OriginOptions(inputs=("id", "energy"), target="id")
    with pytest.raises(UserError, match="must differ"):
        find_origin(source, options)
    with closing(find_origin(source, OriginOptions(inputs=("id", "energy")))) as origin:
        assert shapes(origin) == {"inputs": ("float32", [2])}
    with closing(find_origin(source, OriginOptions(inputs=("places", "id"), target="energy"))) as o:
        assert shapes(o) == {
            "places": ("float32", [2, 2]), "id": ("int64", []), "targets": ("float32", []),
        }  # fmt: skip


def test_json_lines_of_any_shape_keep_their_names(tmp_path: Path) -> None:
    source = lines(tmp_path / "t.jsonl", [{"x": [0.5] * (i + 1), "y": i} for i in range(5)])
    with closing(find_origin(source, OriginOptions())) as origin:
        assert shapes(origin) == {"x": ("float32", None), "y": ("int64", [])}
        pack(origin, tmp_path / "p", PackingOptions(validation=0))
    read = Pack(tmp_path / "p" / "train")
    order = read.read("y", np.arange(5)).tolist()
    assert [len(x) for x in read.read_each("x", np.arange(5))] == [y + 1 for y in order]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"x": 1}, {"z": 1}], "t.jsonl line 3: it has no 'x', only z"),
        ([{"x": 1}, {"x": None}], "line 3, 'x': null is not an array of numbers"),
        ([{"x": "one"}], "line 1, 'x': the text 'one' is not an array of numbers"),
        ([{"x": 1}, {"x": "one"}], "line 3, 'x': it holds text, but numbers before"),
        ([{"x": [[1], [2, 3]]}], "line 1, 'x': lists of differing lengths"),
        ([{"x": 1}, {"x": [1]}], r"line 3, 'x': its shape is \(1,\), but \(\) before"),
        ([{"x": [1, "a"]}], "line 1, 'x': it holds more than numbers"),
        ([{"x": 2**70}], "line 1, 'x': it holds more than numbers, or numbers out of range"),
        ([[1, 2]], "line 1 is not a JSON object with parts"),
        ([], "t.jsonl has no samples"),
    ],
)
def test_json_lines_that_are_refused(tmp_path: Path, records: list[Any], message: str) -> None:
    source = lines(tmp_path / "t.jsonl", records)
    with pytest.raises(UserError, match=message):
        find_origin(source, OriginOptions())


def test_json_lines_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Windows writes one, and line 1 was no JSON."""
    (tmp_path / "t.jsonl").write_text('{"x": 1}\n{"x": 2}\n', encoding="utf-8-sig")
    with closing(find_origin(str(tmp_path / "t.jsonl"), OriginOptions())) as origin:
        rows: Any = origin.read(np.arange(2))
        assert rows["x"].tolist() == [1, 2]


def test_whole_numbers_of_json_that_are_rounded_are_said(tmp_path: Path) -> None:
    source = lines(tmp_path / "t.jsonl", [{"x": 2**24 + 1, "y": 0.5}, {"x": 0.5, "y": 2}])
    for inputs, name in ((("x", "y"), "key 'x'"), (("x",), "key 'x'")):
        with closing(find_origin(source, OriginOptions(inputs=inputs))) as origin:
            origin.read(np.arange(2))
            assert origin.notes == [
                f"{name} has whole numbers that float32 rounds, such as 16777217, which is packed "
                "as 16777216"
            ]
    values = [npz(x=np.array(i, dtype)) for i, dtype in enumerate(("i8", "u8"))]
    database(tmp_path / "t.lmdb", values, subdir=False)
    with pytest.raises(UserError, match="it holds uint64, but int64 before: no type holds both"):
        find_origin(str(tmp_path / "t.lmdb"), OriginOptions())


def test_json_lines_that_are_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.data.packing.records.TEXT_BYTES", 2**20)
    source = lines(tmp_path / "t.jsonl", [{"x": 1}, {"x": 2}])
    Path(source).write_bytes(Path(source).read_bytes()[:-3])
    with pytest.raises(UserError, match="line 3 is not JSON: Input data was truncated"):
        find_origin(source, OriginOptions())
    bomb = tmp_path / "t.jsonl.gz"
    bomb.write_bytes(gzip.compress(bytes(2**21)))
    with pytest.raises(UserError, match="unzips to more than 1 MB"):
        find_origin(str(bomb), OriginOptions())


RECORDS = base64.b64decode(
    "YQAAAAAAAAAAj5BkCl8KEAoFbGFiZWwSBwoFCgNjYXQKHgoDaWRzEhcaFQoTAawC////////////AYCAgICA"
    "IAoVCgF4EhASDgoMAADAPwAAAMAAAFBAChQKAmlkEg4aDAoK+f//////////AS9JUzBJAAAAAAAAADYlDqMK"
    "RwoQCgVsYWJlbBIHCgUKA2RvZwoPCgNpZHMSCBoGCgQCAgICChUKAXgSEBIOCgwAAAA/AACAPwAAAEAKCwoC"
    "aWQSBRoDCgEI/yACAg=="
)
"""Two examples, as the package tfrecord 1.14.6 writes them."""


def test_tfrecord(tmp_path: Path) -> None:
    pytest.importorskip("google_crc32c")
    (tmp_path / "t.tfrecord-00000-of-00002").write_bytes(RECORDS)
    (tmp_path / "t.tfrecord-00001-of-00002").write_bytes(gzip.compress(RECORDS))
    options = OriginOptions(inputs=("x",), target="label")
    with closing(find_origin(str(tmp_path), options)) as origin:
        assert shapes(origin) == {"inputs": ("float32", [3]), "targets": ("int64", [])}
        assert origin.classes == ["cat", "dog"]
        inputs, targets = everything(origin)
        assert [part.tolist() for part in inputs] == 2 * [[1.5, -2, 3.25], [0.5, 1, 2]]
        assert targets.tolist() == [0, 1, 0, 1]
    source = str(tmp_path / "t.tfrecord-00000-of-00002")
    with closing(find_origin(source, OriginOptions(inputs=("ids", "id"), target="x"))) as origin:
        rows = origin.read(np.arange(2))
        assert isinstance(rows, dict)
        assert rows["ids"].tolist() == [[1, 300, -1, 2**40], [2, 2, 2, 2]]
        assert rows["id"].tolist() == [-7, 8]
        assert rows["targets"].dtype == np.float32


def test_tfrecords_without_their_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Good records were called damaged: the error says which package is missing."""
    pytest.importorskip("google_crc32c")
    (tmp_path / "t.tfrecord").write_bytes(RECORDS)
    monkeypatch.setattr(tfrecord_files, "example_type", missing_protobuf)
    with pytest.raises(ModuleNotFoundError, match="protobuf"):
        find_origin(str(tmp_path / "t.tfrecord"), OriginOptions(target="id"))


def missing_protobuf() -> None:
    raise ModuleNotFoundError("No module named 'google.protobuf'", name="google.protobuf")


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (3, "at byte 0: no record, or damaged"),
        (20, "at byte 0: the record is damaged: its checksum differs"),
        (120, "at byte 113: no record"),
        (None, "at byte 113: it ends in the middle of a record"),
    ],
)
def test_tfrecords_that_are_damaged(tmp_path: Path, offset: int | None, message: str) -> None:
    pytest.importorskip("google_crc32c")
    content = bytearray(RECORDS)
    if offset is None:
        del content[-1]
    else:
        content[offset] ^= 1
    (tmp_path / "t.tfrecord").write_bytes(content)
    with pytest.raises(UserError, match=message):
        find_origin(str(tmp_path / "t.tfrecord"), OriginOptions(target="id"))


def example(**features: bytes) -> bytes:
    """A record of features, each a single byte string."""
    pytest.importorskip("google_crc32c")
    from phalanx.data.packing.tfrecord_files import masked_crc

    def field(number: int, content: bytes) -> bytes:
        size, digits = len(content), bytearray()
        while size > 127:
            digits.append(size & 127 | 128)
            size >>= 7
        return bytes([8 * number + 2, *digits, size]) + content

    entries = (
        field(1, field(1, name.encode()) + field(2, field(1, field(1, value))))
        for name, value in features.items()
    )
    payload = field(1, b"".join(entries))
    size = struct.pack("<Q", len(payload))
    crcs = (struct.pack("<I", masked_crc(part)) for part in (size, payload))
    return size + next(crcs) + payload + next(crcs)


def test_images_in_tfrecords(tmp_path: Path) -> None:
    images = [np.full((4, 5), i, np.uint8) for i in range(4)]
    records = b"".join(example(image=png(p), name=b"ab"[i % 2 :]) for i, p in enumerate(images))
    (tmp_path / "t.tfrecord").write_bytes(records)
    for options, encoding in (({}, "png"), ({"decode": True}, "raw")):
        options_ = OriginOptions(target="name", **options)  # type: ignore[arg-type]
        with closing(find_origin(str(tmp_path / "t.tfrecord"), options_)) as origin:
            assert origin.fields[0].encoding == encoding
            pack(origin, tmp_path / encoding, PackingOptions(validation=0))
            read = Pack(tmp_path / encoding / "train")
            assert sorted(read.read("inputs", np.arange(4))[:, 0, 0, 0].tolist()) == [0, 1, 2, 3]
            assert origin.classes == ["ab", "b"]
    (tmp_path / "u.tfrecord").write_bytes(example(image=b"\xfe\xff", name=b"a"))
    with pytest.raises(UserError, match="'image': 2 bytes are neither an image nor text"):
        find_origin(str(tmp_path / "u.tfrecord"), OriginOptions(target="name"))


def test_numbers_of_tfrecord() -> None:
    pytest.importorskip("google.protobuf")
    from phalanx.data.packing.tfrecord_files import example_type, parse_example

    message = example_type()()
    message.features.feature["n"].int64_list.value.extend(NUMBERS)
    content = message.SerializeToString()
    assert parse_example(content, "it")["n"].tolist() == NUMBERS  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"it: the record is not a tf\.train"):
        parse_example(content[:-1], "it")


def npz(**parts: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **parts)
    return file.getvalue()


def database(path: Path, values: list[bytes], *, subdir: bool = True) -> str:
    lmdb = pytest.importorskip("lmdb")
    with (
        lmdb.open(str(path), subdir=subdir, map_size=2**20) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, value in enumerate(values):
            transaction.put(f"{number:08}".encode(), value)
        transaction.put(b"__len__", b"8")
    return str(path)


FORMS = {
    "npz": lambda i: npz(x=np.full((2, 2), i, np.float32), y=np.int16(i % 2)),
    "json": lambda i: json.dumps({"x": [[i, i], [i, i]], "y": i % 2}).encode(),
    "msgpack": lambda i: msgspec.msgpack.encode({"x": [[i, i], [i, i]], "y": i % 2}),
}


@pytest.mark.parametrize("form", FORMS)
def test_lmdb(tmp_path: Path, form: str) -> None:
    source = database(tmp_path / "db", [FORMS[form](i) for i in range(8)])
    with closing(find_origin(source, OriginOptions(target="y"))) as origin:
        inputs, targets = everything(origin)
        assert [part[1, 1] for part in inputs] == list(range(8))
        assert (targets.tolist(), origin.classes) == ([0, 1] * 4, ["0", "1"])
        assert str(origin.skipped[0]) == "1 keys that count or list the others: __len__"


def test_values_of_lmdb_that_are_one_part(tmp_path: Path) -> None:
    source = database(tmp_path / "db.lmdb", [png(np.zeros((4, 5), np.uint8))] * 3, subdir=False)
    with closing(find_origin(source, OriginOptions())) as origin:
        assert shapes(origin) == {"inputs": ("uint8", [1, 4, 5])}
        assert origin.fields[0].encoding == "png"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (pickle.dumps({"x": 1}), "key '00000000' is pickled, and reading it could run any program"),
        (npz(x=np.array([{}])), "key '00000000', x.npy is not an array: Object arrays are pickles"),
        (npz(x=1)[:-30], "key '00000000' is not an .npz file"),
        (b"\x81\xa1x", "key '00000000' is not an object of MessagePack"),
        (b"word", "key '00000000' holds b'word': not .npz, JSON, MessagePack or an image"),
    ],
)
def test_values_of_lmdb_that_are_refused(tmp_path: Path, value: bytes, message: str) -> None:
    source = database(tmp_path / "db", [value])
    with pytest.raises(UserError, match=message):
        find_origin(source, OriginOptions())


def test_an_lmdb_that_is_damaged(tmp_path: Path) -> None:
    source = database(tmp_path / "db", [FORMS["npz"](i) for i in range(200)])
    file = tmp_path / "db" / "data.mdb"
    file.write_bytes(file.read_bytes()[: 10 * 4096])
    with pytest.raises(UserError, match=r"data\.mdb is cut off: it has 40,960 bytes of"):
        find_origin(source, OriginOptions())
    file.write_bytes(b"no database")
    with pytest.raises(UserError, match="cannot be read as LMDB"):
        find_origin(source, OriginOptions())
