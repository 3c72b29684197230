"""Detect the launcher of this process from its environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from phalanx.errors import UserError
from phalanx.jobs.allocation import per_node

Launcher = Literal["openmpi", "hydra", "slurm", "torchrun"]

# Slurm numbers real steps from 0. Numbers from here on are its own: the batch script
# (0xfffffffb), the shell of `salloc` (0xfffffffa), and the like. See slurm.h.
_FIRST_RESERVED_SLURM_STEP = 0xFFFFFFF0

TORCHRUN_SIGN = "TORCHELASTIC_RUN_ID"
# Slurm sets one of them if it offers its tasks a process manager that MPI libraries support.
_PMI_SIGNS = ("PMI_RANK", "PMI_FD", "PMIX_RANK", "PMIX_NAMESPACE")


@dataclass(frozen=True, kw_only=True)
class Launched:
    """Rank and launcher of this process; `None`: the launcher does not report it."""

    launcher: Launcher
    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise UserError(
                f"{self.launcher} says that this is rank {self.rank} of {self.world_size}; unset "
                "the variables of an older launcher, or start in a new shell"
            )

    @property
    def may_span_nodes(self) -> bool:
        """Return whether the ranks may be on several nodes: the launcher reports it, or nothing."""
        return self.local_world_size != self.world_size > 1


def detect(environ: Mapping[str, str]) -> Launched | None:
    """Return the innermost launcher of this process; None without one.

    torchrun under srun or mpirun sets its variables last, so it wins if TORCHELASTIC_RUN_ID is set.
    RANK and WORLD_SIZE alone may come from a container's settings, so MPI launchers win over them.
    """
    order: list[Launcher] = ["openmpi", "hydra", "slurm"]
    if _is_pmi_of_srun(environ):
        order = ["openmpi", "slurm", "hydra"]
    order.insert(0 if TORCHRUN_SIGN in environ else len(order), "torchrun")
    for launcher in order:
        if launcher == "slurm":
            found = _slurm(environ)
        else:
            found = _launched(launcher, environ, *_NAMES[launcher])
        if found is not None:
            return found
    return None


def refuse_launcher(command: str, environ: Mapping[str, str]) -> None:
    """Raises: UserError when a launcher has started this process: each of its ranks would start
    ranks of its own. command: of phalanx, which starts ranks itself."""
    launched = detect(environ)
    if launched is not None:
        raise UserError(
            f"phalanx {command} starts its ranks, but {launched.launcher} already started "
            f"{launched.world_size}: leave the launcher out, and use --ranks {launched.world_size}"
        )


def refuse_hosts(hosts: str | None, hostfile: object | None, launched: Launched) -> None:
    """Raises: UserError when nodes are named to a process that a launcher has started."""
    if hosts is not None or hostfile is not None:
        option = "--hosts" if hosts is not None else "--hostfile"
        raise UserError(
            f"{option}: {launched.launcher} has started {launched.world_size} ranks already: leave "
            "the launcher out, or pass the nodes to it"
        )


def detect_mpi(environ: Mapping[str, str]) -> Launched | None:
    """Return the rank that an MPI launcher gave this process; None if none is innermost.

    `srun --mpi=none` starts tasks that no MPI library recognises as ranks of one job. A step of one
    task usually runs a shell, or a program without MPI.
    """
    launched = detect(environ)
    if launched is None or launched.launcher == "torchrun":
        return None
    if launched.launcher == "slurm":
        has_pmi = any(name in environ for name in _PMI_SIGNS)
        return launched if has_pmi and launched.world_size > 1 else None
    return launched


def how_to_start(launched: Launched | None, library: str) -> str:
    """Return advice if `library` does not recognise the ranks of `launched` as one job."""
    if launched is not None and launched.launcher == "slurm":
        kind = "pmix" if "Open MPI" in library else "pmi2"
        return f"srun offers its tasks no interface of this library: use srun --mpi={kind}"
    if launched is not None and launched.launcher == "torchrun":
        return (
            'call torch.distributed.init_process_group("mpi") first, which connects the ranks of '
            "torchrun, or start with mpiexec; if torchrun did not start this process, unset RANK "
            "and WORLD_SIZE"
        )
    return (
        "launcher and library are of different MPIs (`phalanx doctor` shows both): start with the "
        "mpiexec of this MPI, or unset the variables of another launcher"
    )


_NAMES: dict[Launcher, tuple[str, str, str, str]] = {
    "openmpi": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # Hydra: MPICH, Intel MPI and their derivatives.
    "hydra": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
}


def _slurm(environ: Mapping[str, str]) -> Launched | None:
    """Detect ranks of `srun`.

    A batch script and the shell of `salloc` have SLURM_PROCID=0 and the SLURM_NTASKS of the full
    allocation although they are one process; only the step tells them apart.
    """
    step = _number(environ, "SLURM_STEP_ID")
    if step is None or step >= _FIRST_RESERVED_SLURM_STEP:
        return None
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    found = _launched("slurm", environ, "SLURM_PROCID", size, "SLURM_LOCALID", "")
    if found is None or (found.world_size == 1 and _starts_others(environ)):
        return None
    return replace(found, local_world_size=_slurm_tasks_here(environ))


def _starts_others(environ: Mapping[str, str]) -> bool:
    """Return whether the one task of a step is a terminal, or has itself started ranks."""
    return "SLURM_PTY_PORT" in environ or (_number(environ, "WORLD_SIZE") or 1) > 1


def _is_pmi_of_srun(environ: Mapping[str, str]) -> bool:
    """Return whether PMI_RANK and PMI_SIZE come from `srun --mpi=pmi2`, without local ranks.

    Ranks of Hydra's `mpiexec` in an allocation carry variables of Slurm too, but those of the step
    that started Hydra's own processes.
    """
    pairs = [("PMI_RANK", "SLURM_PROCID"), ("PMI_SIZE", "SLURM_STEP_NUM_TASKS")]
    same = all(environ.get(pmi) == environ.get(slurm) for pmi, slurm in pairs)
    return same and "MPI_LOCALRANKID" not in environ


def _slurm_tasks_here(environ: Mapping[str, str]) -> int | None:
    """Return entry SLURM_NODEID of SLURM_STEP_TASKS_PER_NODE, such as `4(x2),3`."""
    node = _number(environ, "SLURM_NODEID")
    tasks = per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return tasks[node] if node is not None and node < len(tasks) else None


def _launched(
    launcher: Launcher,
    environ: Mapping[str, str],
    rank_name: str,
    size_name: str,
    local_rank_name: str,
    local_size_name: str,
) -> Launched | None:
    rank, world_size = _number(environ, rank_name), _number(environ, size_name)
    if rank is None or world_size is None:
        return None
    return Launched(
        launcher=launcher,
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, local_rank_name),
        local_world_size=_number(environ, local_size_name),
    )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise UserError(f"{name}={text!r} is not a number; unset it, or start in a new shell")
    return int(text)
