"""Under a user's own script, ranks write down what they did last when one of them fails."""

import os
import subprocess
from pathlib import Path

import pytest

from phalanx.records.last_collectives import DUMP_DIR, describe_stuck_ranks, read_last_collectives
from tests.conftest import ONE_THREAD, PATIENCE, Programs, Ranks, forked_phalanx

pytestmark = pytest.mark.mpi


def test_a_script_that_raises(programs: Programs, tmp_path: Path) -> None:
    """It names no folder: that of `phalanx launch` has the files, and the last lines say who is
    behind."""
    logs = tmp_path / "last"
    words = ["launch", "-n", 2, "--log-dir", logs, programs("last.py"), "raise"]
    done = subprocess.run(
        [*forked_phalanx(), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
        env={**os.environ, **ONE_THREAD},
    )
    output = done.stderr
    assert done.returncode == 1 and "rank 1 failed" in output and "no such luck" in output
    found = read_last_collectives(logs)
    assert set(found) == {0, 1}, output
    assert found[1].reason == "ValueError: no such luck"
    assert "rank 1 failed: ValueError: no such luck" in found[0].reason
    said = describe_stuck_ranks(found)
    assert said is not None
    assert said.startswith("rank 1 is 1 collective behind: it last finished all_reduce number")
    assert "of group world of backend mpi" in said
    assert said in output and str(logs / "last-collectives-*.json") in output


def test_a_script_that_is_asked_to_end(
    ranks: Ranks,
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DUMP_DIR, str(tmp_path))
    ranks.mpi(2, programs("last.py"), "end", may_fail=True)
    found = read_last_collectives(tmp_path)
    assert found[1].reason == "rank 1 was asked to end (SIGTERM)"
    assert found[1].groups[0].calls[-1].is_done
