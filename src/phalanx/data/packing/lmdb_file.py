"""LMDB databases: a value a sample, in a form that can be read without running it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from phalanx.data.packing.array_tables import parse_npy, parse_npz
from phalanx.data.packing.records import RecordTable, parse_object, part_of_json
from phalanx.data.packing.table import INPUTS, Part, fingerprint_of, reading
from phalanx.data.packing.tfrecord_files import IMAGES, image_or_text
from phalanx.errors import UserError

_COUNTS = (b"__len__", b"__keys__", b"length", b"len", b"num-samples", b"num_samples")
"""Keys whose values count or list the others."""


class LmdbFile(RecordTable):
    """Values are `.npz` or `.npy` files, objects of JSON or MessagePack, or images."""

    def __init__(self, path: Path) -> None:
        """Raises: UserError when the database is damaged, or the first value is pickled or of no
        known form."""
        super().__init__()
        self.text, self._path = str(path), path
        file = path / "data.mdb" if path.is_dir() else path
        self.fingerprint = fingerprint_of([file])
        self._environment = _opened(path, file)
        try:
            self._transaction = self._environment.begin()
            self._keys: list[bytes] = []
            for key in self._transaction.cursor().iternext(keys=True, values=False):
                if key in _COUNTS:
                    self.skipped.add("keys that count or list the others", key.decode())
                else:
                    self._keys.append(key)
            self._set_rows(len(self._keys))
        except BaseException:
            self.close()
            raise

    def record(self, number: int) -> Mapping[str, Any]:
        return parse_value(self._transaction.get(self._keys[number]), self.place(number))

    def part(self, value: Any, where: str) -> Part:
        if isinstance(value, bytes):
            return image_or_text(value, where)
        return value if isinstance(value, np.ndarray) else part_of_json(value, where)

    def place(self, number: int) -> str:
        return f"{self._path}, key {self._keys[number].decode(errors='backslashreplace')!r}"

    def close(self) -> None:
        self._environment.close()


def _opened(path: Path, file: Path) -> Any:
    import lmdb  # optional dependency

    with reading(f"{path} cannot be read as LMDB"):
        environment = lmdb.open(
            str(path), subdir=path.is_dir(), readonly=True, lock=False, readahead=False
        )
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if needed > file.stat().st_size:
        environment.close()
        raise UserError(f"{file} is cut off: it has {file.stat().st_size:,} bytes of {needed:,}")
    return environment


def parse_value(content: bytes, where: str) -> Mapping[str, Any]:
    """Return the parts of a value, by its first bytes.

    Raises: UserError that begins with `where`, when it is pickled or of no known form.
    """
    first = content[:1]
    if content.startswith(IMAGES):
        return {INPUTS: content}
    if content.startswith(b"PK\3\4"):
        return parse_npz(content, where)
    if content.startswith(b"\x93NUMPY"):
        return {INPUTS: parse_npy(content, where)}
    if first == b"{":
        return parse_object(content, where)
    if first == b"\x80" and content[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        raise UserError(
            f"{where} is pickled, and reading it could run any program: refused\nif you trust it, "
            "read it in a function and pack that, my_data.py:samples"
        )
    if first and (0x80 <= first[0] < 0x90 or first in (b"\xde", b"\xdf")):
        with reading(f"{where} is not an object of MessagePack"):
            return msgspec.msgpack.decode(content, type=dict[str, Any])
    raise UserError(f"{where} holds {content[:40]!r}: not .npz, JSON, MessagePack or an image")
