"""What is sent arrives while its sender computes: a pipeline's ranks do little else."""

from pathlib import Path

import pytest

from tests.conftest import Programs, Ranks

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("transport", ["of the node", "tcp"])
def test_a_sender_that_computes(
    ranks: Ranks,
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    transport: str,
) -> None:
    if transport == "tcp":  # as between nodes; other MPIs than Open MPI pass over the name
        monkeypatch.setenv("OMPI_MCA_btl", "tcp,self")
    folder = tmp_path / "there"
    folder.mkdir()
    output = ranks.mpi(2, programs("sending.py"), str(folder))
    assert output.count("is done") == 2
