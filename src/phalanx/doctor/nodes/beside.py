"""Examine the nodes of a job: what must be known before it over ssh, the links beside its start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from phalanx.doctor.nodes.meeting import Meeting
from phalanx.doctor.nodes.plan import NodePlan
from phalanx.doctor.nodes.preflight import Preflight, ask_over_ssh, examine_nodes
from phalanx.errors import UserError
from phalanx.jobs.installation import MpiInstallation

Show = Callable[[str], None]


class LinksBeside:
    """Ranks that measure the links between nodes while a job of these nodes runs."""

    def __init__(self, found: Preflight, meeting: Meeting, show: Show) -> None:
        self._found, self._meeting, self._show = found, meeting, show
        self._is_shown = False

    def check(self) -> None:
        """Show the lines on the nodes once the ranks have ended; to be called again and again.

        Raises: UserError where they do not meet.
        """
        met = None if self._is_shown else self._meeting.poll()
        if met is not None:
            self._is_shown = True
            show_lines(self._found.having_met(met), self._show)

    def close(self) -> None:
        """Wait for the ranks and show the lines, also where they do not meet: the job, which has
        come to its end, did not need that."""
        self._meeting.wait()
        try:
            self.check()
        except UserError as error:
            self._show(str(error))


@contextlib.contextmanager
def examined_beside(
    plan: NodePlan, mpi: MpiInstallation, show: Show
) -> Iterator[Callable[[], None]]:
    """Examine the nodes over ssh, then start a rank on each, to measure the links while the block
    runs, which is a job of these nodes.

    show: is given each line on the nodes. MPI is kept from networks that do not lead to all nodes,
    by variables of this process.
    Yields: a function to call again and again, which raises UserError where the ranks do not meet.
    Raises: UserError naming each node that cannot run the job, and the fix.
    """
    found = ask_over_ssh(plan, mpi) if plan.has_ssh else examine_nodes(plan, mpi)
    if found.are_apart and not found.problems:  # the job would wait for ever
        with found.meeting(mpi) as meeting:
            found = found.having_met(meeting.wait())
    if found.problems or found.are_apart or not plan.has_ssh:
        show_lines(found, show)
        yield lambda: None
        return
    os.environ.update(found.variables)
    with found.meeting(mpi) as meeting:
        links = LinksBeside(found, meeting, show)
        yield links.check
        links.close()


def show_lines(found: Preflight, show: Show) -> None:
    """Raises: UserError as `Preflight.lines`."""
    for line in found.lines():
        show(line)
