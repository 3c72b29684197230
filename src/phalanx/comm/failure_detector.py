"""Failure detection while a rank waits: it reads notices, and finds out which ranks are missing.

Every group has a communicator for notices. A waiting rank polls it about once a millisecond, so a
short wait costs nothing, and answers when a peer asks whether it is waiting.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from phalanx.comm.doorbell import Doorbell
from phalanx.comm.errors import PeerFailedError
from phalanx.comm.in_flight import keep_for_ever
from phalanx.comm.mpi import mpi
from phalanx.comm.wait import Competition, WaitPolicy, WaitTimeoutError, wait_until

LOOK_EVERY_S, GONE_EVERY_S = 1e-3, 20e-3
NOTICE_TAG = 0
GRACE_S = 2.0  # that the others have to answer

Look = Callable[[], bool]

# What a notice begins with; what follows is text.
_ASKS, _WAITS, _FAILED = b"?", b"w", b"f"


class FailureDetector:
    """The waits of one rank in one group.

    `activity` is what the rank is doing, such as "all_reduce number 17".
    """

    def __init__(
        self,
        notices: Any,
        *,
        group: str,
        members: tuple[int, ...],
        policy: WaitPolicy,
        timeout_s: float,
        parent: FailureDetector | None = None,
        tag: int = NOTICE_TAG,
    ) -> None:
        """notices: a communicator of the group; its `tag` is used for nothing else; parent: of the
        group that this one was made from; failures of members there end waits here."""
        self._tag = tag
        self._notices, self._group, self._members = notices, group, members
        self.policy = policy
        """Of the waits that begin from now on."""
        self._parent = parent
        self.rank: int = notices.Get_rank()
        self.activity = "set-up"
        self.timeout_s = timeout_s
        self.failed: dict[int, str] = {}
        """Ranks in the world, and why they failed."""
        self._waiting: dict[int, str] = {}
        self._looked_at = 0.0
        self._sent: list[Any] = []
        self._is_open = True
        self.bell: Doorbell | None = None
        """Of the ranks of this node, where all members are on it and can ring for each other."""
        self.is_gone: Callable[[int], bool] = lambda _: False
        """Whether the process of a rank on this node is gone."""
        self._asked_at = 0.0
        self._competition = Competition()
        self._threads: list[int] = []  # that wait

    def until(
        self,
        ready: Callable[[], bool],
        timeout_s: float | None = None,
        *,
        whom: Callable[[], str] | None = None,
        peers: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """Return as soon as `ready()` is true.

        whom: names who is waited for; None: ask the others who is there. peers: ranks without any
        of which it will never be true.
        Raises: WaitTimeoutError naming the ranks that did not come; PeerFailedError, also when the
                group is closed meanwhile.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        look, nap = self._looking(ready, peers)
        thread = threading.get_ident()
        self._threads.append(thread)
        try:
            wait_until(
                look,
                self.policy,
                timeout_s=timeout_s,
                on_timeout=lambda: (
                    f"rank {self.rank} waited {timeout_s:g} s in {self.activity} "
                    f"of group {self._group} for {(whom or self._missing)()}"
                ),
                nap=nap,
                competition=self._competition,
            )
        finally:
            self._threads.remove(thread)

    def tell_failure(self, reason: str) -> None:
        """Let every other member know that this rank cannot go on."""
        for peer in range(len(self._members)):
            if peer != self.rank:
                self._tell(peer, _FAILED, reason)

    def in_world(self, rank: int) -> int:
        return self._members[rank]

    def text_of(self, rank: int) -> str:
        """A rank of the group, as people know it."""
        in_world = self._members[rank]
        return f"{rank}" if in_world == rank else f"{rank} (world {in_world})"

    def of_some(self, communicator: Any, members: tuple[int, ...]) -> FailureDetector:
        """Create one for a subset of the ranks, on their communicator. members: world ranks."""
        return FailureDetector(
            communicator,
            group=self._group,
            members=members,
            policy=self.policy,
            timeout_s=self.timeout_s,
            parent=self._parent,
        )

    def close(self) -> None:
        """End the waits of other threads, and look no more. Notices on their way are forgotten;
        MPI ends the sending by itself."""
        bell, self._is_open, self.bell = self.bell, False, None
        until_s = time.monotonic() + GRACE_S
        while self._others_wait() and time.monotonic() < until_s:
            if bell is not None:
                bell.ring(self.rank)
            time.sleep(LOOK_EVERY_S)
        for message in self._sent:
            if not message[0].Test():
                keep_for_ever(message)  # MPI reads it until it is sent
        self._sent.clear()

    def _others_wait(self) -> bool:
        return any(thread != threading.get_ident() for thread in self._threads)

    def _looking(
        self, ready: Look, peers: Callable[[], Sequence[int]]
    ) -> tuple[Look, Callable[[float], None]]:
        """Return a function that polls `ready` and notices, and one that naps between polls."""
        bell = self.bell
        if bell is None:
            return lambda: ready() or self._look(ready, peers), time.sleep
        count = 0

        def look() -> bool:
            nonlocal count
            count = bell.count()  # before looking: who rings later ends the nap
            return ready() or self._look(ready, peers)

        return look, lambda nap_s: bell.doze(count, nap_s)

    def _look(self, ready: Look, peers: Callable[[], Sequence[int]]) -> bool:
        """Read what others say, and see who is gone, not more often than makes sense; whether the
        wait is over all the same."""
        if not self._is_open:
            raise PeerFailedError(
                f"group {self._group} was closed while rank {self.rank} waited in {self.activity}"
            )
        now = time.monotonic()
        if now - self._looked_at > LOOK_EVERY_S:
            self._looked_at = now
            self.read_notices()
        if now - self._asked_at > GONE_EVERY_S:
            self._asked_at = now
            return self._raise_gone(ready, peers())
        return False

    def _raise_gone(self, ready: Look, peers: Sequence[int]) -> bool:
        """Raises: PeerFailedError when one of `peers` is gone and has not left what is waited for,
        which MPI may have to be asked for more than once."""
        gone = [peer for peer in peers if self.is_gone(peer)]
        for _ in range(100 if gone else 0):
            if ready():
                return True
        for peer in gone:
            raise PeerFailedError(
                f"rank {self.text_of(peer)} failed: its process is gone; rank {self.rank} waited "
                f"for it in {self.activity} of group {self._group}"
            )
        return False

    def read_notices(self) -> None:
        """Raises: PeerFailedError when a member, or a member of the parent, has failed."""
        self._receive_all()
        self._raise_failure(self.failed)
        if self._parent is not None:
            self._parent._receive_all()
            mine = {r: text for r, text in self._parent.failed.items() if r in self._members}
            self._raise_failure(mine)

    def _raise_failure(self, failed: dict[int, str]) -> None:
        for rank, reason in failed.items():
            raise PeerFailedError(f"rank {rank} failed: {reason}")

    def _receive_all(self) -> None:
        if self._parent is not None:
            self._parent._receive_all()
        # A matched probe: two threads that wait may look at the same time, and a plain one would
        # show both the same notice, for which the second would then wait for ever.
        status = _status()
        while self._is_open and (message := self._notices.Improbe(tag=self._tag, status=status)):
            memory = bytearray(status.Get_count())
            message.Recv(memory)
            self._take(status.Get_source(), bytes(memory))

    def _take(self, source: int, notice: bytes) -> None:
        kind = notice[:1]
        group, _, text = notice[1:].decode(errors="replace").partition("\0")
        if group != self._group:
            return  # a straggler of a closed group, whose communicator had the number of ours
        if kind == _FAILED:
            self.failed[self._members[source]] = text
            return
        self._waiting[source] = text
        if kind == _ASKS:
            self._tell(source, _WAITS, self.activity)

    def _tell(self, peer: int, kind: bytes, text: str) -> None:
        notice = kind + f"{self._group}\0{text}".encode()
        self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
        self._sent.append((self._notices.Isend(notice, peer, self._tag), notice))

    def _missing(self) -> str:
        """Describe the ranks that are not waiting in the same collective. A waiting rank answers,
        whatever it waits for; one that stays silent computes, or has ended."""
        others = [rank for rank in range(len(self._members)) if rank != self.rank]
        self._waiting = {r: text for r, text in self._waiting.items() if text == self.activity}
        for peer in others:
            self._tell(peer, _ASKS, self.activity)

        def heard_all() -> bool:
            self._receive_all()
            return all(peer in self._waiting for peer in others)

        with contextlib.suppress(WaitTimeoutError):
            wait_until(heard_all, self.policy, timeout_s=GRACE_S, on_timeout=lambda: "")
        self._raise_failure(self.failed)
        return self._who(others)

    def _who(self, others: list[int]) -> str:
        missing = [rank for rank in others if rank not in self._waiting]
        if missing:
            return "rank " + ", ".join(self.text_of(rank) for rank in missing)
        elsewhere = [rank for rank in others if self._waiting[rank] != self.activity]
        if elsewhere:
            return "rank " + ", ".join(
                f"{self.text_of(rank)}, which is in {self._waiting[rank]}" for rank in elsewhere
            )
        return "the network: every rank is waiting"


def _status() -> Any:
    return mpi().Status()
