"""Other people's libraries, unchanged, on backend mpi and beside it: the parameters are Gloo's.

They are pinned in constraints.txt. Two ranks: the order of a sum of two does not matter, so every
backend makes the same bits.
"""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks

LIBRARIES = ("accelerate", "transformers", "lightning")
missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
]
CASES = 6
LIMIT_S = 280


def results(output: str) -> dict[str, tuple[str, str]]:
    """Of each case the backend and the sum of the parameters, on which both ranks agree."""
    lines = re.findall(r"(\w[\w ]*) on (\w+), rank (\d) of 2: (\d+\.\d+)", output)
    found = {case: (backend, total) for case, backend, _, total in lines}
    assert (len(found), len(lines)) == (CASES, 2 * CASES), output
    for case, backend, _, total in lines:
        assert found[case] == (backend, total), f"ranks differ in {case}"
    return found


@pytest.fixture(scope="module")
def without_phalanx(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """What they make by themselves."""
    ranks = Ranks(tmp_path_factory.mktemp("without") / "ranks.log", Path(sys.executable))
    program = Path(__file__).parent / "programs" / "libraries.py"
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    output = ranks.torchrun(2, program, "none", environment=environment, timeout_s=LIMIT_S)
    assert "is_mpi_available() is False" in output
    found = results(output)
    assert {backend for backend, _ in found.values()} == {"gloo"}
    return found


Programs = Callable[[str], Path]
Results = dict[str, tuple[str, str]]


def test_who_does_not_ask_for_mpi_does_not_notice(
    ranks: Ranks, programs: Programs, without_phalanx: Results
) -> None:
    output = ranks.torchrun(2, programs("libraries.py"), "none", timeout_s=LIMIT_S)
    assert "is_mpi_available() is False" in output
    assert results(output) == without_phalanx


def test_torchrun(ranks: Ranks, programs: Programs, without_phalanx: Results) -> None:
    output = ranks.torchrun(2, programs("libraries.py"), "mpi", timeout_s=LIMIT_S)
    on_mpi = {case: ("mpi", total) for case, (_, total) in without_phalanx.items()}
    assert results(output) == on_mpi


def test_mpiexec(ranks: Ranks, programs: Programs, without_phalanx: Results) -> None:
    """Accelerate takes backend mpi by itself here; the others find its group."""
    output = ranks.mpi(2, programs("libraries.py"), "none", timeout_s=LIMIT_S)
    assert "is_mpi_available() is True" in output
    on_mpi = {case: ("mpi", total) for case, (_, total) in without_phalanx.items()}
    assert results(output) == on_mpi
