"""PyTorch's training engines, unchanged, on backend mpi: each trains what one process trains.

What is compared, and to what accuracy, is said by the programs. They were all run at 2, 3 and 4
ranks: 3 and 4 leave uneven shards, and a rank without any.
"""

from pathlib import Path

import pytest

from tests.conftest import Programs, Ranks, done

pytestmark = pytest.mark.mpi


COUNTS = (2, 3, 4)


@pytest.mark.parametrize(
    "count", [n if n == 3 else pytest.param(n, marks=pytest.mark.long) for n in COUNTS]
)
@pytest.mark.parametrize(
    "words", [("ddp", "buckets", "sharded"), ("tensors", "pipelines", "compiled")], ids=" ".join
)
def test_engines(ranks: Ranks, programs: Programs, count: int, words: tuple[str, ...]) -> None:
    assert done(ranks.mpi(count, programs("several.py"), *words), count)


def test_engines_without_shared_memory(
    ranks: Ranks, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between nodes: in messages of MPI."""
    monkeypatch.setenv("PHALANX_KERNELS", "arrays")
    output = ranks.mpi(3, programs("several.py"), "ddp", "sharded", "pipelines")
    assert "ranks exchange messages" in output
    assert done(output, 3)


@pytest.mark.parametrize(
    ("saved_by", "loaded_by"), [(2, 3), pytest.param(4, 2, marks=pytest.mark.long)]
)
def test_checkpoint_for_other_ranks(
    ranks: Ranks,
    programs: Programs,
    tmp_path: Path,
    saved_by: int,
    loaded_by: int,
) -> None:
    """One job saves; another one, of other ranks and with other shards, goes on to the same end."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    program = programs("checkpoints.py")
    assert done(ranks.mpi(saved_by, program, "save", str(folder)), saved_by)
    assert len(list(folder.iterdir())) == 6
    assert done(ranks.mpi(loaded_by, program, "load", str(folder)), loaded_by)


@pytest.mark.long
def test_inductor(ranks: Ranks, programs: Programs) -> None:
    assert done(ranks.mpi(2, programs("compiled.py"), timeout_s=300), 2)
