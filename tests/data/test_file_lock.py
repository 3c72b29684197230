"""A lock keeps others away while its holder lives, and no longer."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.data.file_lock import exclusive

HOLD = """
import sys, time, pathlib
from phalanx.data.file_lock import exclusive
with exclusive(pathlib.Path(sys.argv[1]), timeout_s=10):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "thing"
    words = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        began = time.monotonic()
        with (
            pytest.raises(TimeoutError, match="held by another process"),
            exclusive(path, timeout_s=0.2),
        ):
            pytest.fail("held twice")
        assert 0.2 <= time.monotonic() - began < 5
        holder.kill()
        with exclusive(path, timeout_s=10):
            pass


def test_without_a_folder_the_work_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where the folder should be")
    done = []
    with exclusive(tmp_path / "file" / "thing", timeout_s=0):
        done.append(True)
    assert done


@pytest.mark.timeout(60)
def test_a_link_or_a_fifo_in_place_of_a_lock_is_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".thing.lock").symlink_to(victim)
    os.mkfifo(tmp_path / ".other.lock")
    for name in ("thing", "other"):
        with exclusive(tmp_path / name, timeout_s=1):
            pass
    assert victim.read_text() == "mine"
