"""Context of one collective call: its span, and the handling of its failure."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from phalanx.comm.collective import Call
from phalanx.comm.errors import MismatchError, PeerDiedError, WaitTimeoutError
from phalanx.comm.flight_recorder import NETWORK, collective_detail
from phalanx.comm.traffic import payload_bytes
from phalanx.records.spans import SpanRecorder, now_ns

if TYPE_CHECKING:
    from phalanx.comm.group_base import GroupBase


class CollectiveCall:
    """Context of one collective call: breaks the group if it fails."""

    def __init__(self, group: GroupBase) -> None:
        self._group = group
        self.timeout_s: float | None = None
        self._call = Call("nothing")
        self._began_ns = 0

    def begin(self, call: Call) -> None:
        """Begin a traced call."""
        self._call, self._began_ns = call, now_ns()

    def __enter__(self) -> None:
        """The call has begun."""

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        __: TracebackType | None,
    ) -> None:
        if error is not None:
            self._name_collective(error)
            self._group._break(error)
            return
        group = self._group
        group._call_log.finished = group.sequence
        if group._spans is not None and self._began_ns:
            self._add_span(group._spans)

    def _add_span(self, spans: SpanRecorder) -> None:
        group, call = self._group, self._call
        spans.add(
            f"{call.name} {group.sequence}",
            NETWORK,
            self._began_ns,
            now_ns(),
            collective_detail(
                group.name, group.members, group.sequence, payload_bytes(call, group.rank)
            ),
        )

    def _name_collective(self, error: BaseException) -> None:
        """Add the collective and the group to errors raised below them."""
        group = self._group
        if isinstance(error, MismatchError):
            error.args = (f"collective number {group.sequence} of group {group.name}: {error}",)
        elif isinstance(error, PeerDiedError):
            error.args = (f"{error}, in {group._detector.activity} of group {group.name}",)
        elif isinstance(error, WaitTimeoutError) and " waited " not in str(error):
            timeout_s = group.timeout_s if self.timeout_s is None else self.timeout_s
            error.args = (
                f"rank {group.rank} waited {timeout_s:g} s in {group._detector.activity} "
                f"of group {group.name} for {error}",
            )
