"""Names and files that a stranger may have made."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from phalanx.errors import UserError
from phalanx.records.files import read_study, write_atomically, write_record
from phalanx.records.regular_file import component, open_lock, open_regular, relative_path
from tests.report.made_study import make_study

OUTSIDE = ["..", ".", "", "../x", "a/../../x", "/etc/x", "a/b", ".ssh", "-rf", "a\n", "a\0", "a b"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leaves_its_folder(name: str) -> None:
    with pytest.raises(UserError, match="refused as a file name"):
        component(name)
    if name != "a/b":
        with pytest.raises(UserError, match="refused as a file name"):
            relative_path(name)


def test_names_that_are_written_are_taken() -> None:
    for name in ("kept-3.safetensors", "shard-00000.x-y.npy", "größe.json", "_a"):
        assert component(name) == name
    assert relative_path("train/index.json") == Path("train/index.json")


@pytest.mark.timeout(60)
def test_nothing_but_a_file_is_opened(tmp_path: Path) -> None:
    """A FIFO of that name hung the start, and a link led to somebody else's file."""
    os.mkfifo(tmp_path / "fifo")
    for opened in (open_regular, open_lock):
        with pytest.raises(OSError, match="Not a regular file"):
            opened(tmp_path / "fifo")
        with pytest.raises(OSError, match="Is a directory"):
            opened(tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "link").symlink_to(victim)
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"mine"
    with pytest.raises(OSError, match="Is a symbolic link"):
        open_regular(tmp_path / "link", follow_links=False)
    with pytest.raises(OSError, match="Is a symbolic link"):
        open_lock(tmp_path / "link")
    (tmp_path / f".link.{os.getpid()}").symlink_to(victim)
    write_atomically(tmp_path / "link", b"other", synced=False)
    assert victim.read_text() == "mine"


def test_a_study_names_no_folder_outside(tmp_path: Path) -> None:
    study = read_study(make_study(tmp_path, []))
    write_record(tmp_path, replace(study, runs=["../../etc"]))
    with pytest.raises(UserError, match="damaged: Expected `str` matching"):
        read_study(tmp_path)
