"""Messages between two ranks of backend mpi, in shared memory and without it."""

import pytest

from tests.conftest import Programs, Ranks

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("kernels", ["auto", "arrays"])
def test_messages(
    ranks: Ranks, programs: Programs, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    """Beside collectives, given up, timed out, refused."""
    if kernels != "auto":
        monkeypatch.setenv("PHALANX_KERNELS", kernels)
    output = ranks.mpi(2, programs("messages.py"))
    assert output.count("is done") == 2
