"""A checkpoint of any layout goes on under any other, and one that is being written when a rank is
killed leaves the one before it whole."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from phalanx.checkpoints.find import find_checkpoint
from phalanx.checkpoints.manifest import verify
from phalanx.checkpoints.tensor_file import stored_files
from tests.conftest import Ranks

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]


@pytest.mark.parametrize("what", ["cross", "cross-files"])
def test_every_layout_goes_on_from_every_other(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path, what: str
) -> None:
    output = ranks.mpi(4, programs("crossings.py"), str(tmp_path), what, timeout_s=280)
    for rank in range(4):
        assert f"rank {rank} of 4 is done" in output, output
    assert "UserWarning" not in output
    files = [path.name for path in (tmp_path / "gpt" / "zero" / "epoch-0001").iterdir()]
    assert ("model.safetensors" in files) == (what == "cross")
    assert all(not name.startswith(".") for name in files), "no notes are left"


def test_a_rank_killed_while_it_writes_beside_others(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    output = ranks.mpi(2, programs("crossings.py"), str(tmp_path), "die-files", may_fail=True)
    assert "is done" not in output
    saved = tmp_path / "saved"
    assert find_checkpoint(saved).path == saved / "epoch-0001"
    assert "a tensor is on its way" in output, "killed in the midst of it"
    ranks.mpi(2, programs("crossings.py"), str(tmp_path), "again-files")
    assert sorted(path.name for path in saved.glob("*epoch*")) == ["epoch-0001", "epoch-0002"]
    verify(saved / "epoch-0002")
    for name in ("model.safetensors", "optimizer.safetensors"):
        found = [stored_files(saved / f"epoch-000{n}", name) for n in (1, 2)]
        assert len(found[0]) > 2, "of more than one rank"
        assert [path.read_bytes() for path in found[0]] == [path.read_bytes() for path in found[1]]


def test_a_rank_killed_while_it_sends(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    """Every rank has a folder of its own, as on nodes that share none."""
    output = ranks.mpi(2, programs("crossings.py"), str(tmp_path), "die", may_fail=True)
    assert "is done" not in output
    saved = tmp_path / "0" / "saved"
    assert find_checkpoint(saved).path == saved / "epoch-0001"
    assert "a tensor is on its way" in output, "killed in the midst of it"
    ranks.mpi(2, programs("crossings.py"), str(tmp_path), "again")
    assert sorted(path.name for path in saved.glob("*epoch*")) == ["epoch-0001", "epoch-0002"]
    assert not list((tmp_path / "1").iterdir()), "rank 0 alone writes"
    verify(saved / "epoch-0002")
    for name in ("model", "optimizer"):
        files = [load_file(saved / f"epoch-000{n}" / f"{name}.safetensors") for n in (1, 2)]
        assert all(files[0][key].equal(files[1][key]) for key in files[0]), "the same steps"
