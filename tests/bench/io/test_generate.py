"""Data is there whole or not at all, is used again, and is refused where the disk is too small."""

from pathlib import Path

import pytest

from phalanx.bench.io import generate as generating
from phalanx.bench.io.formats import Shape
from phalanx.bench.io.generate import (
    DataLocation,
    check_room,
    data_files,
    generate,
    is_complete,
    missing_parts,
    remove_parts,
)
from phalanx.errors import UserError

SHAPE = Shape(num_samples=70, sample_bytes=512, shard_samples=20)


@pytest.fixture
def location(tmp_path: Path) -> DataLocation:
    return DataLocation(root=tmp_path / "data", shape=SHAPE)


def nobody(_name: str, _done: float) -> None:
    pass


def test_it_is_written_once(location: DataLocation) -> None:
    first = generate(location, ["files", "npy"], 2, nobody)
    assert [one.write_s is None for one in first] == [False, False]
    again = generate(location, ["files", "npy"], 2, nobody)
    assert [one.write_s for one in again] == [None, None]
    assert [one.bytes for one in again] == [one.bytes for one in first]
    assert check_room(location, missing_parts(location, ["files", "npy"], 2)) == 0


def test_a_file_that_was_cut_short_is_written_anew(location: DataLocation) -> None:
    generate(location, ["npy"], 1, nobody)
    part = location.part("npy", 0)
    damaged = max(data_files(part), key=lambda path: path.stat().st_size)
    damaged.write_bytes(b"")
    assert not is_complete(part)
    assert check_room(location, missing_parts(location, ["npy"], 1)) > 0
    generate(location, ["npy"], 1, nobody)
    assert is_complete(part)


def test_interrupted_it_leaves_nothing(location: DataLocation) -> None:
    def interrupt(_name: str, _done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(location, ["files"], 1, interrupt)
    assert [path for path in location.root.rglob("*") if path.is_file()] == []


def test_a_disk_that_is_too_small(location: DataLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "free_bytes", lambda _: 2**30 + 1000)
    with pytest.raises(UserError, match=r"1\.00 GB free; the data takes .* and 1\.00 GB must stay"):
        check_room(location, missing_parts(location, ["npy"], 1))
    assert not location.root.exists()


def test_what_was_not_there_is_removed_and_nothing_else(location: DataLocation) -> None:
    generate(location, ["npy"], 1, nobody)
    ours = missing_parts(location, ["npy", "files"], 2)
    assert ours == [location.part("npy", 1), location.part("files", 0), location.part("files", 1)]
    generate(location, ["npy", "files"], 2, nobody)
    remove_parts(location, ours)
    assert is_complete(location.part("npy", 0))
    assert [path.name for path in location.folder.iterdir()] == ["npy"]
    remove_parts(location, [location.part("npy", 0)])
    assert not location.root.exists()
