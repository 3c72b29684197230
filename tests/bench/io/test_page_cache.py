"""Which pages of a file are in memory."""

import os
import sys
from pathlib import Path

import pytest

from phalanx.bench.io.page_cache import drop, plain_read, resident_share

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells")


def test_read_and_dropped(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "empty")]
    for path, size in zip(paths, (3_000_000, 5000, 0), strict=True):
        path.write_bytes(os.urandom(size))
        with path.open("rb") as file:
            os.fsync(file.fileno())
    assert plain_read(paths) == 3_005_000
    assert resident_share(paths) == 1.0
    memory = bytearray(2_000_000)  # less than there is: its beginning is used twice
    assert plain_read(paths, memoryview(memory)) == 3_005_000
    assert memory[1_000_000:1_005_000] == paths[1].read_bytes()
    assert memory[1_005_000:] == paths[0].read_bytes()[1_005_000:2_000_000]
    drop(paths)
    if resident_share(paths) == 1.0:
        pytest.skip("this file system lives in memory")
    assert resident_share(paths) == 0.0
    plain_read(paths[:1])
    assert 0.9 < (resident_share(paths) or 0) < 1.0
    assert resident_share(paths[2:]) is None
