"""The formats by name, and the packages that they need."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec

from phalanx.bench.io.formats.hdf5 import Hdf5Store, write_hdf5
from phalanx.bench.io.formats.packed import PackedStore, write_packed
from phalanx.bench.io.formats.parquet import ParquetStore, write_parquet
from phalanx.bench.io.formats.single_files import FileStore, write_files
from phalanx.bench.io.formats.store import Open, Write
from phalanx.records.io import Format

WRITE: Mapping[Format, Write] = {
    "files": write_files,
    "tar": partial(write_packed, "tar"),
    "npy": partial(write_packed, "npy"),
    "hdf5": write_hdf5,
    "parquet": write_parquet,
}
OPEN: Mapping[Format, Open] = {
    "files": FileStore,
    "tar": PackedStore,
    "npy": PackedStore,
    "hdf5": Hdf5Store,
    "parquet": ParquetStore,
}
_NEEDS: Mapping[Format, str] = {"hdf5": "h5py", "parquet": "pyarrow"}


def unavailable_reason(format_: Format) -> str | None:
    """Return why the format cannot be measured here; else None."""
    package = _NEEDS.get(format_)
    if package is None or find_spec(package):
        return None
    return f"{package} is not installed: pip install 'phalanx[data]'"
