"""Failure detection while a rank waits: it reads notices, and finds out which ranks are missing.

Every group has a communicator for notices. A waiting rank polls it about once a millisecond, so a
short wait costs nothing, and answers when a peer asks who is waiting (`roll_call.py`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from phalanx.comm.errors import PeerFailedError
from phalanx.comm.faults import dead_ranks, fault_in, left_error, raise_if_left
from phalanx.comm.in_flight import keep_alive_forever
from phalanx.comm.mpi import mpi
from phalanx.comm.rank_labels import RankLabels
from phalanx.comm.roll_call import RollCall, decode, ring_peers
from phalanx.comm.select import FEW_RANKS
from phalanx.comm.shm import ShmGroup
from phalanx.comm.wait import CoreContention, WaitPolicy, WaitTimeoutError, wait_until
from phalanx.jobs.open_files import shortage

POLL_INTERVAL_S, LIVENESS_INTERVAL_S = 1e-3, 20e-3
NOTICE_TAG = 0
GRACE_S = 2.0  # wait for the answers of the peers
MOST_NAMED = 16  # most missing ranks that an error names

Poll = Callable[[], bool]

# First byte of a notice; text follows.
_ASKS, _FAILED = b"?", b"f"

_num_waits: dict[int, int] = {}  # counts so far, by thread
_waiting_threads: set[int] = set()


def current_wait(thread: int) -> int | None:
    """Return the number of the wait in which a thread is, in any group, also one that is still
    being set up; None: in none. Called from any thread."""
    return _num_waits.get(thread) if thread in _waiting_threads else None


class FailureDetector:
    """Waits of one rank in one group, ended by a timeout or by the failure of a peer.

    `activity` is what the rank is doing, such as "all_reduce number 17".
    """

    def __init__(
        self,
        notices: Any,
        *,
        group: str,
        labels: RankLabels,
        policy: WaitPolicy,
        timeout_s: float,
        parent: FailureDetector | None = None,
        tag: int = NOTICE_TAG,
        survivors: bool = False,
    ) -> None:
        """notices: a communicator of the group; its `tag` is used for nothing else; parent: of the
        group that this one was made from; failures of members there end waits here. survivors: wait
        for those alone whom MPI does not know to be dead."""
        self._survivors = survivors
        self._tag = tag
        self._notices, self._group = notices, group
        self.labels, self._members = labels, labels.members
        self.policy = policy
        """Wait policy of the waits that begin from now on."""
        self._parent = parent
        self.rank: int = notices.Get_rank()
        self.activity = "set-up"
        self.timeout_s = timeout_s
        self.failed: dict[int, str] = {}
        """World ranks that have failed, with the reason."""
        self._roll_calls: dict[str, RollCall] = {}
        self._notices_read_at = 0.0
        self._sent: list[Any] = []
        self._is_open = True
        self.bell: ShmGroup | None = None
        """Doorbells of this node, where all members are on it and share memory."""
        self.is_dead: Callable[[int], bool] = lambda _: False
        """Returns whether the process of a rank on this node is dead."""
        self.is_in_memory = False
        """True while this rank executes a part of a collective in the memory of its node."""
        self._liveness_checked_at = 0.0
        self._contention = CoreContention()
        self._threads: list[int] = []  # ids of the waiting threads

    def until(
        self,
        ready: Callable[[], bool],
        timeout_s: float | None = None,
        *,
        whom: Callable[[], str] | None = None,
        peers: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """Return as soon as `ready()` is true.

        whom: names the awaited ranks; None: find out which of them wait. peers: ranks without
        any of which it will never be true.
        Raises: WaitTimeoutError naming the ranks that did not come; PeerFailedError, also when the
                group is closed meanwhile.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        poll, nap = self._make_poll(ready, peers)
        try:
            with self.waiting():
                wait_until(
                    poll,
                    self.policy,
                    timeout_s=timeout_s,
                    on_timeout=lambda: (
                        f"rank {self.labels.short(self.rank)} waited {timeout_s:g} s in "
                        f"{self.activity} of group {self._group} for "
                        f"{(whom or self.missing_ranks)()}{shortage()}"
                    ),
                    nap=nap,
                    contention=self._contention,
                )
        except Exception as error:
            self._raise_fault(error)
            if type(error).__module__.startswith("mpi4py"):
                self._blame_dead_peer(error, peers())
            raise

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait of this thread for peers, by other means than `until`, too."""
        thread = threading.get_ident()
        _num_waits[thread] = _num_waits.get(thread, 0) + 1
        _waiting_threads.add(thread)
        self._threads.append(thread)
        try:
            yield
        finally:
            self._threads.remove(thread)
            _waiting_threads.discard(thread)

    def report_failure(self, reason: str, rank: int | None = None) -> None:
        """Report to all peers that `rank`, None: this one, has failed: of many ranks to few, that
        pass it on."""
        size, failed = len(self._members), self.rank if rank is None else rank
        peers = range(size) if size <= FEW_RANKS else ring_peers(self.rank, size)
        to = [peer for peer in peers if peer != self.rank]
        self._send_notices(to, _FAILED, f"{failed}\0{reason}")

    def close(self) -> None:
        """End the waits of other threads, and stop polling. Notices in flight are dropped; MPI
        completes the sends."""
        bell, self._is_open, self.bell = self.bell, False, None
        until_s = time.monotonic() + GRACE_S
        while self._others_are_waiting() and time.monotonic() < until_s:
            if bell is not None:
                bell.ring(self.rank)
            time.sleep(POLL_INTERVAL_S)
        for message in self._unsent():
            keep_alive_forever(message)  # MPI reads it until it is sent
        self._sent.clear()

    def _others_are_waiting(self) -> bool:
        return any(thread != threading.get_ident() for thread in self._threads)

    def _make_poll(
        self, ready: Poll, peers: Callable[[], Sequence[int]]
    ) -> tuple[Poll, Callable[[float], None]]:
        """Return a function that polls `ready` and notices, and one that naps between polls."""
        bell = self.bell
        if bell is None:
            return lambda: ready() or self._poll(ready, peers), time.sleep
        count = 0

        def poll() -> bool:
            nonlocal count
            count = bell.num_rings()  # read before polling: a later ring ends the nap
            return ready() or self._poll(ready, peers)

        return poll, lambda nap_s: bell.sleep(count, nap_s)

    def _poll(self, ready: Poll, peers: Callable[[], Sequence[int]]) -> bool:
        """Read notices and check that peers are alive, at intervals; return whether the wait is
        over all the same."""
        if not self._is_open:
            raise PeerFailedError(
                f"group {self._group} was closed while rank {self.labels.short(self.rank)} waited "
                f"in {self.activity}"
            )
        now = time.monotonic()
        if now - self._notices_read_at > POLL_INTERVAL_S:
            self._notices_read_at = now
            raise_if_left()
            self.read_notices()
        if now - self._liveness_checked_at > LIVENESS_INTERVAL_S:
            self._liveness_checked_at = now
            return self._raise_if_dead(ready, peers())
        return False

    def _raise_if_dead(self, ready: Poll, peers: Sequence[int]) -> bool:
        """Raises: PeerFailedError when one of `peers` is dead and what is awaited has not arrived,
        for which MPI may have to be polled more than once."""
        gone = [peer for peer in peers if self.is_dead(peer)]
        for _ in range(100 if gone else 0):
            if ready():
                return True
        for peer in gone:
            raise self._death_of(peer)
        return False

    def _blame_dead_peer(self, error: Exception, peers: Sequence[int]) -> None:
        """Raises: PeerFailedError when the process of a peer is gone, which MPI reports in words of
        its own: MPICH reads the memory of peers, and says that there is no such process."""
        until_s = time.monotonic() + GRACE_S
        while time.monotonic() < until_s:
            for peer in peers or range(len(self._members)):
                if peer != self.rank and self.is_dead(peer):
                    raise self._death_of(peer) from error
            time.sleep(POLL_INTERVAL_S)

    def _death_of(self, peer: int) -> PeerFailedError:
        return PeerFailedError(
            f"rank {self.labels.full(peer)} failed: its process is gone; rank "
            f"{self.labels.short(self.rank)} waited for it in {self.activity} of group "
            f"{self._group}"
        )

    def read_notices(self) -> None:
        """Raises: PeerFailedError when a member, or a member of the parent, has failed."""
        self.answer()
        self._raise_failure(self.failed)
        if self._parent is not None:
            mine = {r: text for r, text in self._parent.failed.items() if r in self._members}
            self._raise_failure(mine)

    def _raise_failure(self, failed: dict[int, str]) -> None:
        for rank, reason in failed.items():
            raise PeerFailedError(f"rank {self.labels.of_world_rank(rank)} failed: {reason}")

    def answer(self, activity: str | None = None) -> None:
        """Read the notices that have arrived, and answer questions.

        activity: what this rank waits in; None: the last one of this group.
        """
        activity = activity or self.activity
        if self._parent is not None:
            self._parent.answer(f"{activity} of group {self._group}")
        # A matched probe: two waiting threads may poll at the same time, and a plain probe would
        # show both the same notice, for which the second would then wait forever.
        status = mpi().Status()
        while self._is_open and (message := self._probe(status)):
            memory = bytearray(status.Get_count())
            message.Recv(memory)
            self._handle_notice(status.Get_source(), bytes(memory), activity)
        for roll_call in self._roll_calls.values():
            if self._is_open:
                self._pass_on(roll_call, roll_call.take_news())

    def answer_in_memory(self) -> None:
        """Answer at intervals while this rank waits in the memory of its node, which calls this
        every millisecond or so."""
        now = time.monotonic()
        if self.is_in_memory and now - self._notices_read_at > LIVENESS_INTERVAL_S:
            self._notices_read_at = now
            self.answer()

    def _probe(self, status: Any) -> Any:
        """Return a notice that has arrived, else None. Raises: PeerFailedError when MPI says that a
        peer is dead, unless this detector is for `survivors`."""
        try:
            return self._notices.Improbe(tag=self._tag, status=status)
        except Exception as error:
            if not self._survivors or fault_in(error) != "died":
                self._raise_fault(error)
                raise
        self._notices.Ack_failed()  # notices of any rank can be received again
        return None

    def _raise_fault(self, error: Exception) -> None:
        """Raises: PeerFailedError when `error` is how MPI says that a peer is dead or has left."""
        fault = fault_in(error)
        if fault == "left":
            raise left_error() from error
        if fault == "died":
            for peer in dead_ranks(self._notices):
                raise self._death_of(peer) from error

    def _handle_notice(self, source: int, notice: bytes, activity: str) -> None:
        kind = notice[:1]
        group, _, text = notice[1:].decode(errors="replace").partition("\0")
        if group != self._group:
            return  # a straggler of a closed group, whose communicator had the number of ours
        if kind == _FAILED:
            failed, _, reason = text.partition("\0")
            is_first = not self.failed
            self.failed[self._members[int(failed)]] = reason
            if is_first and len(self._members) > FEW_RANKS:
                self.report_failure(reason, int(failed))
            return
        asked, heard = decode(text)
        roll_call = self._roll_call(asked)
        if roll_call.hear(heard, activity, source):
            self._pass_on(roll_call, [source])

    def _roll_call(self, asked: str) -> RollCall:
        """Return the one of that name, which this rank begins to hear of. Of a call before the
        present one nobody asks any more."""
        if asked not in self._roll_calls:
            calls = {asked: RollCall(self.rank, len(self._members), asked)}
            if (present := self._roll_calls.get(self.activity)) is not None:
                calls[self.activity] = present
            self._roll_calls = calls  # another thread may read them
            return calls[asked]
        return self._roll_calls[asked]

    def _pass_on(self, roll_call: RollCall, peers: Sequence[int]) -> None:
        if peers and self._survivors:
            dead = dead_ranks(self._notices)
            peers = [peer for peer in peers if peer not in dead]
        self._send_notices(peers, _ASKS, roll_call.encode() if peers else "")

    def _send_notices(self, peers: Sequence[int], kind: bytes, text: str) -> None:
        if peers:
            notice = kind + f"{self._group}\0{text}".encode()
            self._sent = self._unsent()
            for peer in peers:
                self._sent.append((self._notices.Isend(notice, peer, self._tag), notice))

    def _unsent(self) -> list[Any]:
        """Return the notices that MPI still reads; it has done with those to dead ranks."""
        unsent = []
        for request, kept in self._sent:
            try:
                is_sent = request.Test()
            except Exception as error:
                if fault_in(error) is None:
                    raise
                is_sent = True
            if not is_sent:
                unsent.append((request, kept))
        return unsent

    def missing_ranks(self) -> str:
        """Describe the ranks that are not waiting in the same collective. A waiting rank answers,
        whatever it waits for; one that stays silent computes, or has ended.

        Raises: PeerFailedError.
        """
        dead = dead_ranks(self._notices) if self._survivors else []
        others = [r for r in range(len(self._members)) if r != self.rank and r not in dead]
        roll_call = self._roll_call(self.activity)
        roll_call.begin()
        ask_at_s = time.monotonic() + GRACE_S / 2
        has_asked = False

        def heard_all() -> bool:
            nonlocal has_asked
            self.answer()
            missing = roll_call.missing(others)
            if not has_asked and time.monotonic() > ask_at_s and roll_call.is_first():
                has_asked = True
                self._pass_on(roll_call, missing)
            return not missing

        with contextlib.suppress(WaitTimeoutError):
            wait_until(heard_all, self.policy, timeout_s=GRACE_S, on_timeout=lambda: "")
        self._raise_failure(self.failed)
        if missing := roll_call.missing(others):
            return self._named([self.labels.full(rank) for rank in missing])
        if elsewhere := roll_call.elsewhere(others):
            return self._named(
                [f"{self.labels.full(rank)}, which is in {elsewhere[rank]}" for rank in elsewhere]
            )
        return "the network: every rank is waiting"

    def _named(self, names: Sequence[str]) -> str:
        more = f" and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else ""
        return f"rank {', '.join(names[:MOST_NAMED])}{more}"
