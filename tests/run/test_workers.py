"""Processes that read samples for ranks, and what they leave."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.jobs.leftovers import SHARED_MEMORY
from tests.conftest import PATIENCE, long

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no /dev/shm"),
]


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds * PATIENCE
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("victim", ["rank", long("reader"), "launcher"])
def test_readers_leave_nothing_however_the_run_ends(
    command: list[str], programs: Callable[[str], Path], tmp_path: Path, victim: str
) -> None:
    """Each run that failed or was ended left some ten semaphores in shared memory and a folder of
    sockets: the process by which Python removes semaphores was ended with the ranks, and nobody
    removes the folder of a process that is killed."""
    words = [str(programs("readers.py")), str(tmp_path)]
    words.append("nobody" if victim == "launcher" else victim)
    launched = subprocess.Popen(
        [*command, "launch", "-n", "2", "--log-dir", str(tmp_path / "logs"), command[-1], *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    notes = [tmp_path / f"left-{rank}" for rank in range(2)]
    try:
        assert wait_for(lambda: all(note.exists() for note in notes), 60)
        left = [Path(name) for note in notes for name in note.read_text().split()]
        assert len(left) > 4
    finally:
        if victim == "launcher":
            launched.kill()
        code = launched.wait(60 * PATIENCE)
    assert code != 0
    within_s = 10 if victim == "launcher" else 1
    assert wait_for(lambda: not any(path.exists() for path in left), within_s), [
        path for path in left if path.exists()
    ]
