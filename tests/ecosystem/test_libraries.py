"""Other people's libraries, unchanged, on backend mpi and beside it: the parameters are Gloo's.

They are pinned in constraints.txt. Two ranks: the order of a sum of two does not matter, so every
backend makes the same bits. The ranks of mpiexec import the libraries themselves, when backend mpi
is known; the others are forks of a process that has, since the imports take nine seconds.
"""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Ranks, forking

LIBRARIES = ("accelerate", "transformers", "lightning")
missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
]
CASES = 6
LIMIT_S = 280
IMPORTED = (
    *("accelerate", "lightning", "lightning.fabric.strategies", "lightning.pytorch.strategies"),
    *("transformers.models.gpt2.modeling_gpt2", "transformers.trainer"),
)
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
Programs = Callable[[str], Path]
Results = dict[str, tuple[str, str]]


def results(output: str) -> Results:
    """Of each case the backend and the sum of the parameters, on which both ranks agree."""
    lines = re.findall(r"(\w[\w ]*) on (\w+), rank (\d) of 2: (\d+\.\d+)", output)
    found = {case: (backend, total) for case, backend, _, total in lines}
    assert (len(found), len(lines)) == (CASES, 2 * CASES), output
    for case, backend, _, total in lines:
        assert found[case] == (backend, total), f"ranks differ in {case}"
    return found


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Its programs are forks of a process that has imported the libraries, nothing of Phalanx."""
    with forking(tmp_path_factory.mktemp("forking"), *IMPORTED, environment=QUIET) as stand_in:
        yield stand_in


@pytest.fixture
def forked_ranks(tmp_path: Path, interpreter: Path) -> Ranks:
    return Ranks(tmp_path / "ranks.log", interpreter)


@pytest.fixture(scope="module")
def without_phalanx(tmp_path_factory: pytest.TempPathFactory, interpreter: Path) -> Results:
    """What they make by themselves."""
    ranks = Ranks(tmp_path_factory.mktemp("without") / "ranks.log", interpreter)
    program = Path(__file__).parent / "programs" / "libraries.py"
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    output = ranks.torchrun(2, program, "none", environment=environment, timeout_s=LIMIT_S)
    assert "is_mpi_available() is False" in output
    found = results(output)
    assert {backend for backend, _ in found.values()} == {"gloo"}
    return found


def test_who_does_not_ask_for_mpi_does_not_notice(
    forked_ranks: Ranks, programs: Programs, without_phalanx: Results
) -> None:
    output = forked_ranks.torchrun(2, programs("libraries.py"), "none", timeout_s=LIMIT_S)
    assert "is_mpi_available() is False" in output
    assert results(output) == without_phalanx


def test_torchrun(forked_ranks: Ranks, programs: Programs, without_phalanx: Results) -> None:
    output = forked_ranks.torchrun(2, programs("libraries.py"), "mpi", timeout_s=LIMIT_S)
    on_mpi = {case: ("mpi", total) for case, (_, total) in without_phalanx.items()}
    assert results(output) == on_mpi


@pytest.mark.usefixtures("new_ranks")  # skipped without MPI
def test_phalanx_launch(tmp_path: Path, programs: Programs, without_phalanx: Results) -> None:
    """Ranks of mpiexec. Accelerate takes backend mpi by itself here; the others find its group."""
    words = ["-n", "2", "--threads", "1", "--log-dir", tmp_path / "logs", programs("libraries.py")]
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "launch", *map(str, words), "none"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    output = "".join(log.read_text() for log in sorted((tmp_path / "logs").glob("rank-*.log")))
    assert "is_mpi_available() is True" in output
    assert "For MPI backend, world_size" not in output, "a warning that is untrue here"
    on_mpi = {case: ("mpi", total) for case, (_, total) in without_phalanx.items()}
    assert results(output) == on_mpi
