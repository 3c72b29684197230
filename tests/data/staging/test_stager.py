"""Shards on the node's own disk: whole, within their room, gone in the end; never an obstacle."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packed.index_file import read_index
from phalanx.data.packed.pack import Pack
from phalanx.data.staging.stage_folder import KEPT, LOCK, PREFIX, StageFolder, stage_path
from phalanx.data.staging.stage_schedule import StageUnit
from phalanx.data.staging.stager import Stager
from phalanx.errors import UserError
from tests.conftest import Ranks
from tests.data.packs import make_pack

PRINT = "0123456789abcdef"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return make_pack(tmp_path / "numbers")


def units_of(pack: Path) -> list[StageUnit]:
    shards = read_index(pack / "train").shards
    return [StageUnit(split="train", files=tuple(shard.files)) for shard in shards]


def stager(
    pack: Path, folder: Path, *, keep: bool = False, max_bytes: float | None = None
) -> tuple[Stager, Path]:
    """One that brings all shards, in their order; and where to."""
    path = stage_path(folder, PRINT, f"host-{os.getpid()}", 0)
    units = units_of(pack)
    return (
        Stager(
            pack,
            StageFolder(path, PRINT, keep=keep),
            units,
            lambda: [[number] for number in range(len(units))],
            max_bytes=max_bytes,
        ),
        path,
    )


def wait_for(ready: Callable[[], bool]) -> None:
    for _ in range(6000):
        if ready():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come")


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("train/shard*")}


def test_shards_come_whole_and_are_read_from_there(pack: Path, tmp_path: Path) -> None:
    bringing, path = stager(pack, tmp_path / "stage")
    wanted = {file.name for unit in units_of(pack) for file in unit.files}
    wait_for(lambda: files_of(path) == wanted)
    for name in wanted:
        assert (path / "train" / name).read_bytes() == (pack / "train" / name).read_bytes()
    assert bringing.read_bytes == sum(unit.bytes for unit in units_of(pack))
    opened = Pack(pack / "train")
    opened.read_from(path / "train")
    expected = Pack(pack / "train").read("inputs", np.arange(77))
    for file in (pack / "train").glob("shard*"):
        file.rename(file.with_suffix(".away"))
    assert np.array_equal(opened.read("inputs", np.arange(77)), expected)
    for file in (pack / "train").glob("*.away"):
        file.rename(file.with_suffix(".npy"))
    bringing.close()
    assert os.listdir(tmp_path / "stage") == []
    opened.read_from(None)
    assert np.array_equal(opened.read("inputs", np.arange(77)), expected)
    assert bringing.notices() == []


def test_what_is_kept_serves_the_next_run(pack: Path, tmp_path: Path) -> None:
    first, path = stager(pack, tmp_path / "stage", keep=True)
    wait_for(lambda: len(files_of(path)) == 24)
    first.close()
    (kept,) = (tmp_path / "stage").iterdir()
    altered = kept / "train" / "shard-00003.inputs.npy"
    altered.write_bytes(altered.read_bytes()[:-1] + b"\1")
    second, path = stager(pack, tmp_path / "stage")
    wait_for(lambda: len(files_of(path)) == 24)
    second.close()
    assert second.read_bytes == units_of(pack)[3].bytes  # the others were there
    assert os.listdir(tmp_path / "stage") == []


def test_it_stays_within_its_room(pack: Path, tmp_path: Path) -> None:
    sizes = [unit.bytes for unit in units_of(pack)]
    bringing, path = stager(pack, tmp_path / "stage", max_bytes=sum(sizes[:3]) + 10)
    wait_for(lambda: len(files_of(path)) == 9)
    time.sleep(0.2)
    assert files_of(path) == {file.name for unit in units_of(pack)[:3] for file in unit.files}
    bringing.close()


def test_what_a_killed_run_left_is_removed(pack: Path, tmp_path: Path) -> None:
    left = tmp_path / "stage" / f"{PREFIX}other-run-0"
    left.mkdir(parents=True)
    (left / LOCK).touch()
    (left / "part").write_bytes(b"x" * 1000)
    others = tmp_path / "stage" / f"{PREFIX}kept"
    others.mkdir()
    (others / LOCK).touch()
    (others / KEPT).touch()
    mine = tmp_path / "stage" / "mine"
    mine.mkdir()
    bringing, _ = stager(pack, tmp_path / "stage")
    running, _ = StageFolder(stage_path(tmp_path / "stage", "2", "b", 0), "2", keep=False), None
    assert not left.exists() and others.exists() and mine.exists()
    running.close()
    assert bringing._folder.path.exists()  # held: the other run let it be
    bringing.close()


def test_a_copy_that_is_not_what_was_packed_is_not_used(pack: Path, tmp_path: Path) -> None:
    damaged = pack / "train" / "shard-00002.inputs.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")
    missing = pack / "train" / "shard-00004.npy"
    missing.unlink()
    bringing, path = stager(pack, tmp_path / "stage")
    wait_for(lambda: len(files_of(path)) == 18)
    told = []
    wait_for(lambda: len(told.extend(bringing.notices()) or told) == 2)  # type: ignore[func-returns-value]
    assert "train/shard-00002.inputs.npy was not staged" in told[0]
    assert "does not match the SHA-256" in told[0] and f"it is read from {pack}" in told[0]
    assert "shard-00004.npy" in told[1] and "No such file" in told[1]
    bringing.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("making a small file system needs root")
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine does not allow mounting")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)  # open files or not


def test_a_full_disk_keeps_what_is_there_and_reading_goes_on(pack: Path, small_disk: Path) -> None:
    bringing, path = stager(pack, small_disk)
    told: list[str] = []
    wait_for(lambda: bool(told.extend(bringing.notices()) or told))  # type: ignore[func-returns-value]
    assert "No space left on device" in told[0]
    whole = [unit for unit in units_of(pack) if {f.name for f in unit.files} <= files_of(path)]
    assert 0 < len(whole) < 8
    wait_for(lambda: len(files_of(path)) == 3 * len(whole))  # what is not whole goes after the note
    assert not list(path.glob("train/.*"))
    opened = Pack(pack / "train")
    opened.read_from(path / "train")
    plain = Pack(pack / "train").read("inputs", np.arange(77))
    assert np.array_equal(opened.read("inputs", np.arange(77)), plain)
    opened.close()
    bringing.close()
    assert os.listdir(small_disk) == []


@pytest.mark.mpi
def test_every_byte_is_read_once_in_the_job_and_reaches_all_nodes(
    ranks: Ranks, programs: Callable[[str], Path], pack: Path, tmp_path: Path, small_disk: Path
) -> None:
    """Three nodes, one of which has a full disk; the main thread trains meanwhile."""
    output = ranks.mpi(3, programs("stager.py"), str(pack), str(tmp_path), str(small_disk))
    assert output.count("is done") == 3


def test_somebody_elses_folder_is_neither_used_nor_removed(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that many users may write, one made the folder of a run first, and could change
    the shards after they were checked."""
    own = os.geteuid()
    kept, left = tmp_path / f"{PREFIX}{PRINT}", tmp_path / f"{PREFIX}{PRINT}-gone-0"
    for folder in (kept, left):
        folder.mkdir()
        (folder / LOCK).touch()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)  # these are another user's from here on
    with pytest.raises(UserError, match="belongs to another user, who"):
        StageFolder(left, PRINT, keep=True)
    assert kept.exists() and left.exists()
