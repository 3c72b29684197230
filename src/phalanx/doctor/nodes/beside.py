"""Examine the nodes of a job: what must be known before it over ssh, the links beside its start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from phalanx.doctor.nodes.plan import NodePlan
from phalanx.doctor.nodes.preflight import Preflight, ask_over_ssh, examine_nodes
from phalanx.errors import UserError
from phalanx.jobs.installation import MpiInstallation


@contextlib.contextmanager
def examined_beside(
    plan: NodePlan, mpi: MpiInstallation, show: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Examine the nodes over ssh, then start a rank on each, to measure the links while the block
    runs, which is a job of these nodes.

    show: is given each line on the nodes. MPI is kept from networks that do not lead to all nodes,
    by variables of this process.
    Yields: a function to call again and again, which raises UserError where the ranks do not meet.
    After the block, a job that has come to its end, that is shown as a line.
    Raises: UserError naming each node that cannot run the job, and the fix.
    """
    found = ask_over_ssh(plan, mpi) if plan.has_ssh else examine_nodes(plan, mpi)
    if found.are_apart and not found.problems:  # the job would wait for ever
        with found.meeting(mpi) as meeting:
            found = found.having_met(meeting.wait())
    if found.problems or found.are_apart or not plan.has_ssh:
        _show_lines(found, show)
        yield lambda: None
        return
    os.environ.update(found.variables)
    is_shown = False
    with found.meeting(mpi) as meeting:

        def check() -> None:
            nonlocal is_shown
            met = None if is_shown else meeting.poll()
            if met is not None:
                is_shown = True
                _show_lines(found.having_met(met), show)

        yield check
        meeting.wait()
        try:
            check()
        except UserError as error:
            show(str(error))


def _show_lines(found: Preflight, show: Callable[[str], None]) -> None:
    """Raises: UserError as `Preflight.lines`."""
    for line in found.lines():
        show(line)
