"""A checkpoint of any layout goes on under any other, and one that is being written when a rank is
killed leaves the one before it whole."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from phalanx.train.manifest import find_checkpoint, read_manifest
from tests.conftest import Ranks

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]


def test_every_layout_goes_on_from_every_other(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    output = ranks.mpi(4, programs("crossings.py"), str(tmp_path), "cross", timeout_s=280)
    for rank in range(4):
        assert f"rank {rank} of 4 is done" in output, output
    assert "UserWarning" not in output


def test_a_rank_killed_while_it_writes(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    output = ranks.mpi(2, programs("crossings.py"), str(tmp_path), "die", may_fail=True)
    assert "is done" not in output
    whole = tmp_path / "epoch-0001"
    assert find_checkpoint(tmp_path) == whole
    read_manifest(whole)
    assert (tmp_path / ".epoch-0002.parts").is_dir(), "killed in the midst of it"
    ranks.mpi(2, programs("crossings.py"), str(tmp_path), "again")
    assert sorted(path.name for path in tmp_path.glob("*epoch*")) == ["epoch-0001", "epoch-0002"]
    read_manifest(tmp_path / "epoch-0002")
    for name in ("model", "optimizer"):
        files = [load_file(tmp_path / f"epoch-000{n}" / f"{name}.safetensors") for n in (1, 2)]
        assert all(files[0][key].equal(files[1][key]) for key in files[0]), "the same steps"
