"""Everything around the execution of a collective: its number, log, comparison, count and trace."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from phalanx.comm.collective import AlgorithmOption, Call, Collective
from phalanx.comm.collectives.single_rank import SingleRank
from phalanx.comm.connections import Connections
from phalanx.comm.errors import MismatchError, PeerDiedError, WaitTimeoutError
from phalanx.comm.flight_recorder import (
    MAX_LOGGED,
    NETWORK,
    LoggedCall,
    collective_detail,
    merge_logs,
)
from phalanx.comm.select import SHARED, Route
from phalanx.comm.shm import ShmGroup
from phalanx.comm.traffic import TrafficCounter, payload_bytes, scheme_traffic
from phalanx.records.last_collectives import GroupCalls
from phalanx.records.spans import SpanRecorder, now_ns


class CallMonitor:
    """Monitor of the collectives of a group on one rank.

    It is the context of one call at a time, and names the collective in the error that ends it.
    """

    def __init__(
        self,
        peers: Connections,
        *,
        check: bool,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """check: compare every call with those of the peers; on_failure: is given the error."""
        self._peers, self._on_failure = peers, on_failure
        self.check = check
        self.spans: SpanRecorder | None = None
        # Plain tuples: to make a `LoggedCall` takes several times as long.
        self._log: deque[tuple[int, Call, str, bool, int]] = deque(maxlen=MAX_LOGGED)
        self._finished = 0
        """Number of the last call of the log that completed."""
        self._number = 0
        self._call = Call("nothing")
        self._timeout_s: float | None = None
        self._began_ns = 0

    def begin(
        self,
        number: int,
        call: Call,
        timeout_s: float | None,
        route: Route,
        requested: AlgorithmOption = "auto",
    ) -> CallMonitor:
        """Begin a call: log and count it and, in debug mode, compare it with those of the peers."""
        self._set(number, call, timeout_s)
        self._peers.transport.tag = number
        by_request = route != "device" and requested not in SHARED
        named = "shared memory" if route == "shared" else requested if by_request else "messages"
        self._log.append((number, call, named, route == "shared", now_ns()))
        if self.spans is not None:
            self._began_ns = now_ns()
        self.count(call)
        if self.check and self._peers.size > 1:
            if route == "device":
                call = call._replace(name=f"{call.name} of device memory")
            elif by_request:
                call = call._replace(name=f"{call.name} by {requested}")
            self._compare(call, timeout_s)
        return self

    def end_direct(
        self, number: int, call: Call, timeout_s: float | None, error: BaseException
    ) -> None:
        """End a call that failed and did not `begin` here, as the direct ones."""
        self._set(number, call, timeout_s)
        self.__exit__(type(error), error, None)

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
            self._on_failure(error)
            return
        self._finished = self._number
        if self.spans is not None and self._began_ns:
            self._add_span(self.spans)

    @property
    def traffic(self) -> TrafficCounter | None:
        """Counter of what this rank sends and receives; None: nothing is counted."""
        return self._peers.transport.traffic

    @traffic.setter
    def traffic(self, traffic: TrafficCounter | None) -> None:
        self._peers.transport.traffic = traffic

    def count(self, call: Call) -> None:
        """Count a call that begins, where traffic is counted."""
        if self.traffic is not None and call.dtype is not None:
            self.traffic.begin(call.name, payload_bytes(call, self._peers.rank))

    def run_in_memory(
        self, ranks: ShmGroup | SingleRank, collective: Collective, timeout_s: float | None
    ) -> None:
        """Execute a collective that sends no messages, and count it, where traffic is counted."""
        began = time.perf_counter()
        ranks.run(collective, timeout_s)
        elapsed_s = time.perf_counter() - began
        if self.traffic is not None:
            self.traffic.add(scheme_traffic(collective, ranks.rank, ranks.size))
            self.traffic.add_time(elapsed_s, is_network=False)

    def count_of_library(self, collective: Collective) -> None:
        """Count a collective of the MPI library by a formula: it does not say what it sent, where
        to, or when."""
        peers = self._peers
        if self.traffic is not None:
            moved = scheme_traffic(collective, peers.rank, peers.size, peers.nodes)
            self.traffic.add(moved, is_formula=True)

    def last_calls(self, number: int) -> GroupCalls:
        """Return the last collectives of this rank; none in a group of one. number: so far."""
        shm = self._peers.shm
        logged = [*map(LoggedCall._make, self._log)] if self._peers.size > 1 else []
        kernels = [] if shm is None else shm.last_calls()
        calls = merge_logs(number, logged, self._finished, kernels)
        return GroupCalls(group=self._peers.name, members=list(self._peers.members), calls=calls)

    def _set(self, number: int, call: Call, timeout_s: float | None) -> None:
        self._number, self._call, self._timeout_s = number, call, timeout_s
        self._peers.detector.activity = f"{call.name} number {number}"

    def _compare(self, call: Call, timeout_s: float | None) -> None:
        """Exchange with all ranks what each calls. Collective."""
        set_up = self._peers.set_up
        set_up.timeout_s = timeout_s
        try:
            disagreement = compare(set_up.allgather(call), self._peers.labels.full)
            if disagreement is not None:
                raise MismatchError(disagreement)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def _add_span(self, spans: SpanRecorder) -> None:
        num_bytes = payload_bytes(self._call, self._peers.rank)
        spans.add(
            f"{self._call.name} {self._number}",
            NETWORK,
            self._began_ns,
            now_ns(),
            collective_detail(self._peers.name, self._peers.members, self._number, num_bytes),
        )

    def _name_collective(self, error: BaseException) -> None:
        """Add the collective and the group to errors raised below them."""
        activity, group = self._peers.detector.activity, self._peers.name
        if isinstance(error, MismatchError):
            error.args = (f"collective number {self._number} of group {group}: {error}",)
        elif isinstance(error, PeerDiedError):
            error.args = (f"{error}, in {activity} of group {group}",)
        elif isinstance(error, WaitTimeoutError) and " waited " not in str(error):
            timeout_s = self._peers.timeout_s if self._timeout_s is None else self._timeout_s
            own = self._peers.labels.short(self._peers.rank)
            error.args = (
                f"rank {own} waited {timeout_s:g} s in {activity} of group {group} for {error}",
            )


def compare(calls: Sequence[Call], name_of: Callable[[int], str]) -> str | None:
    """Describe which rank called what if the calls do not match; None if they do."""
    if len({call.agreed for call in calls}) > 1:
        return describe_calls([call.agreed for call in calls], name_of)
    for source, sender in enumerate(calls):
        for dest, receiver in enumerate(calls):
            sent = sender.sent[dest] if sender.sent else None
            expected = receiver.expected[source] if receiver.expected else None
            if sent is not None and expected is not None and sent != expected:
                return (
                    f"in {sender.agreed} rank {name_of(source)} sends {sent} elements to rank "
                    f"{name_of(dest)}, which expects {expected}"
                )
    return None


def describe_calls(texts: Sequence[str], name_of: Callable[[int], str]) -> str:
    """texts: of each rank; those of the same text are named together."""
    callers: dict[str, list[str]] = {}
    for rank, text in enumerate(texts):
        callers.setdefault(text, []).append(name_of(rank))
    return ", ".join(
        f"{'rank' if len(names) == 1 else 'ranks'} {', '.join(names)} called {text}"
        for text, names in callers.items()
    )
