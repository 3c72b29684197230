"""The checks of `phalanx doctor`, in the order in which they are shown."""

from __future__ import annotations

from pathlib import Path

from phalanx.data.datasets.catalog import NEEDS_SCIKIT_LEARN, resolve
from phalanx.doctor.devices import check_gpu, check_path
from phalanx.doctor.examine import Check, Finding, ok, warning
from phalanx.doctor.machine import (
    check_cores,
    check_disk,
    check_files,
    check_leftovers,
    check_reads,
    check_shared_memory,
)
from phalanx.doctor.mpi import PROBE_TIMEOUT_S, check_mpi
from phalanx.doctor.nodes.checks import check_nodes
from phalanx.doctor.nodes.meeting import SURVEY_S
from phalanx.doctor.software import check_python, check_report, check_torch
from phalanx.errors import UserError


def check_data(data_root: Path | None) -> list[Finding]:
    try:
        return [ok("data", resolve("auto", data_root).reason)]
    except UserError as error:
        if str(error) != NEEDS_SCIKIT_LEARN:
            raise
        return [warning("data", str(error))]  # programs bring their own


def all_checks(
    ranks: int,
    runs: Path,
    data_root: Path | None,
    *,
    is_launched: bool = False,
    has_nodes: bool = False,
) -> list[Check]:
    """Return all checks.

    ranks: number to start on this machine, or that a launcher has started there (is_launched).
    runs: folder of the runs. has_nodes: --hosts or an allocation names other machines.
    """
    mpi = Check(name="MPI", run=lambda: check_mpi(ranks), timeout_s=PROBE_TIMEOUT_S + 40.0)
    path = Check(name="GPU path", run=check_path, timeout_s=2 * PROBE_TIMEOUT_S + 40.0)
    nodes = Check(name="nodes", run=lambda: check_nodes(runs), timeout_s=SURVEY_S + 30.0)
    return [
        Check(name="Python", run=check_python),
        Check(name="PyTorch", run=check_torch, timeout_s=60.0),
        Check(name="GPU", run=check_gpu, timeout_s=60.0),
        *([] if is_launched else [mpi, path]),
        Check(name="cores", run=lambda: check_cores(ranks)),
        Check(name="shared memory", run=lambda: check_shared_memory(ranks)),
        Check(name="memory of peers", run=check_reads),
        Check(name="open files", run=lambda: check_files(ranks)),
        Check(name="leftovers", run=check_leftovers),
        Check(name="data", run=lambda: check_data(data_root)),
        Check(name="report", run=check_report),
        Check(name="disk", run=lambda: check_disk(runs)),
        *([nodes] if has_nodes else []),
    ]
