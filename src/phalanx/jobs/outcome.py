"""Judgement of an ended job by the ends of its ranks, their records and its launcher's output.

Launchers have been seen to report success after losing ranks, and a surviving rank reports the
death of another in varying words: so the ranks decide, and a rank that died comes before one that
noticed.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from phalanx.errors import EXIT_STOPPED, JobLostError, RunFailedError, RunStoppedError, UserError
from phalanx.jobs.launcher_log import (
    LAUNCHER_LOG,
    aborted_ranks,
    disconnected_hosts,
    explain_silence,
    first_words,
    last_exception,
    last_lines,
    lost_daemon,
    named_rank,
    printed_error,
)
from phalanx.jobs.rank_log import log_file
from phalanx.jobs.rank_notes import ASKED_TO_END, EarlyDeath, RankEnd, read_ends, read_failures
from phalanx.records.events import RecoveredEvent, StartedEvent, StoppedEvent, stopped_text
from phalanx.records.failures import EXIT_BAD_INPUT, EXIT_UNWRITABLE
from phalanx.records.files import rank_file, read_events, read_failure, record_file
from phalanx.records.last_collectives import (
    describe_stuck_ranks,
    last_collectives_file,
    read_last_collectives,
)
from phalanx.records.schema import Failure, Outcome, Run

PEER_DISCONNECTED = 14
"""Exit code with which Open MPI ends a rank when the process of another is gone."""
LOSSES = (-signal.SIGKILL, -signal.SIGHUP, -signal.SIGPIPE, *ASKED_TO_END, PEER_DISCONNECTED)
"""Exit codes of ranks that ended by no failure of their program."""
STOPPED = "stopped as asked: the same command resumes from its checkpoint"
STOPPED_EARLY = "stopped as asked, before the first step"
SHOWN_LINES = 20
"""Lines shown of the log of the rank that failed first."""


class RankNodes(NamedTuple):
    """Ranks on several nodes, as far as the launching node knows of them."""

    hosts: Mapping[int, str] = MappingProxyType({})
    """Host of every rank; empty where all are on one node."""
    lost: Mapping[str, str] = MappingProxyType({})
    """Nodes that did not answer when the job had ended, with the reason."""

    def name(self, rank: int) -> str:
        """Return a rank with its host: `1 (n1)`."""
        return f"{rank} ({self.hosts[rank]})" if rank in self.hosts else str(rank)

    def list(self, ranks: Sequence[int]) -> str:
        """Return ranks with their hosts: `rank 0 (n0), 1 (n1)`."""
        return f"rank {', '.join(map(self.name, ranks))}"


ONE_NODE = RankNodes()


class JobExit(NamedTuple):
    """Exit of a job's processes, as their parent saw it."""

    exit_code: int | None
    """Exit code of the launcher, or of the first process that failed, negative for a signal; 0 when
    all ended well; None when they were ended by their parent."""
    silent_s: float = 0.0
    """Seconds of silence after which they were ended; 0: for another reason."""
    reason: str = ""
    """Why they were ended, where it was no silence and no failure of a rank."""
    nodes: RankNodes = ONE_NODE


class Verdict(NamedTuple):
    """End of a job, for its record and for whoever has started it."""

    outcome: Outcome
    error: UserError | RunFailedError | RunStoppedError | None = None
    """None for a completed job: UserError for what the user can fix, RunFailedError for a failure,
    JobLostError for a loss."""
    is_known: bool = False
    """It comes before what a rank has reported, which may be what it saw of it."""


def judge(folder: Path, ranks: int, ending: JobExit, *, survive: bool = False) -> Verdict:
    """Judge a job: it is complete when the process of every rank has ended well.

    folder: of its logs and records. survive: the other ranks continue when a rank dies.
    """
    return _Judge(folder, ranks, ending, survive=survive).verdict()


def was_stopped(exit_code: int | None) -> bool:
    """Return whether a process ended because SIGUSR1 asked it to, at the latest before its loop."""
    number = signal.SIGUSR1
    return exit_code in (EXIT_STOPPED, -number, 128 + number)


def is_about_peer(error: str | None) -> bool:
    """Return whether an error is one of a rank that missed another, or there is none."""
    return error is None or _PEER_IS_GONE.search(error) is not None


def is_about_loss(error: str | None) -> bool:
    """Return whether an error is due to the death of other ranks, or there is none."""
    return is_about_peer(error) or _STATE_IS_LOST.search(error or "") is not None


_PEER_IS_GONE = re.compile(
    r"\brank (?P<peer>\d+)(?: \([^)]*\))? failed: its process is gone"  # phalanx.comm
    r"|gloo/.*(?:Connection (?:was likely )?(?:closed|reset)|Broken pipe)"
    r"|remote worker crashing"  # PyTorch's hint below an error of Gloo
)
_STATE_IS_LOST = re.compile(
    r"\b(?:run|state) is lost: .*\bdied\b"  # phalanx.parallel
    r"|\bwaited [\d.]+ s in recovery of group\b"  # phalanx.comm
)


def lost_ranks(ranks: int, ends: Mapping[int, int], *, end: int = 0) -> list[int] | None:
    """Return the ranks that died, if all others ended with the code `end`; None if they did not.

    ends: exit codes by rank, negative for a signal; none of a rank whose node is gone.
    """
    lost = [rank for rank in range(ranks) if ends.get(rank) != end]
    is_finished = len(lost) < ranks and all(ends.get(rank, -1) < 0 for rank in lost)
    return lost if is_finished else None


class _Cause(NamedTuple):
    """Why a job has not completed."""

    text: str = ""
    """Empty where the end of the rank explains it."""
    rank: int | None = None
    """The rank to blame, where there is one."""
    is_known: bool = False
    """It comes before what a rank has reported, as in `Verdict`."""


class _Judge:
    """An ended job, and all evidence of its end."""

    def __init__(self, folder: Path, ranks: int, ending: JobExit, *, survive: bool) -> None:
        self.folder, self.ranks, self.ending, self.survive = folder, ranks, ending, survive
        self.nodes, self.ends = ending.nodes, read_ends(folder)
        self.told: Failure | None = None
        """Failure that the first rank to fail has written down."""
        with contextlib.suppress(OSError, ValueError):  # the last line of a rank may be torn
            self.told = read_failure(folder)
        self.misses_peer = self.told is not None and is_about_peer(self.told.message)
        is_trusted = ending.exit_code == 0 and not survive and not self.nodes.hosts
        """The launcher of ranks on this machine says that all has gone well."""
        silent_end = 0 if is_trusted else None
        self.unfinished = [rank for rank in range(ranks) if self.ends.get(rank, silent_end) != 0]

    def verdict(self) -> Verdict:
        if self._has_stopped():
            steps = [step for each in self.records if (step := each.stopped_at) is not None]
            codes = (self.ending.exit_code, *self.ends.values())
            text = STOPPED if EXIT_STOPPED in codes else STOPPED_EARLY
            text = stopped_text(min(steps)) if steps else text
            return Verdict(Outcome(status="interrupted", error=text), RunStoppedError(text))
        if not self.unfinished:
            return Verdict(Outcome(status="completed"))
        lost = lost_ranks(self.ranks, self.ends) if self.survive else None
        if lost is not None and not self.ending.reason:
            return Verdict(Outcome(status="completed", lost=lost))
        return self._failed(self._cause())

    def _has_stopped(self) -> bool:
        """Return whether all ranks have stopped as asked, but for those that died before."""
        lost = lost_ranks(self.ranks, self.ends, end=EXIT_STOPPED)
        if lost is not None and (self.survive or not lost):
            return True
        return was_stopped(self.ending.exit_code) and all(
            was_stopped(end) for end in self.ends.values() if end
        )

    @cached_property
    def records(self) -> list[_RankRecords]:
        """End of each rank by its records; empty in programs without any."""
        return [_read_records(rank_file(self.folder, rank)) for rank in range(self.ranks)]

    @cached_property
    def survived(self) -> set[int]:
        """Ranks without which the others continued."""
        return set[int]().union(*(each.lost for each in self.records))

    def log(self, rank: int) -> Path:
        return log_file(self.folder, rank)

    @cached_property
    def failures(self) -> list[RankEnd]:
        """Failures of ranks in order; those of ranks that noticed another failure come later, and
        survived deaths last."""
        witness = self.told.rank if self.told is not None and self.misses_peer else None
        peer = _missed_peer(self.told.message) if self.told is not None else None
        noted = read_failures(self.folder, deaths_first=self.survive or self.misses_peer)

        def order(end: RankEnd) -> tuple[bool, bool, bool, bool]:
            is_survived = end.exit_code < 0 and end.rank in self.survived
            is_asked = end.exit_code in ASKED_TO_END
            return is_survived, is_asked, self._has_noticed(end), end.rank != peer

        return sorted((end for end in noted if end.rank != witness), key=order)

    def _has_noticed(self, end: RankEnd) -> bool:
        """Return whether a rank has failed since another one was gone."""
        if end.exit_code == PEER_DISCONNECTED:
            return True
        raised = last_exception(self.log(end.rank)) if end.exit_code >= 0 else None
        return raised is not None and is_about_peer(raised)

    def _cause(self) -> _Cause:
        """Return why the job has not completed, by the strongest evidence."""
        ending, named = self.ending, self.nodes.list
        if ending.reason:
            return _Cause(ending.reason, is_known=True)
        if self.told is not None and not self.misses_peer:
            return _Cause(rank=self.told.rank)
        unwritable = [rank for rank, end in self.ends.items() if end == EXIT_UNWRITABLE]
        if unwritable and self._keeps_records:
            return _Cause(rank=min(unwritable))
        if ending.exit_code == EXIT_UNWRITABLE and not self.ends:
            return _Cause(self._unwritable("a rank", EXIT_UNWRITABLE, self.folder / LAUNCHER_LOG))
        early_death = EarlyDeath(self.folder, self.ranks)
        if self.survive and not self.survived and (reason := early_death.why(is_over=True)):
            return _Cause(reason, is_known=True)
        silent = [rank for rank in self.unfinished if rank not in self.ends]
        gone = [rank for rank in silent if self.nodes.hosts.get(rank) in self.nodes.lost]
        if gone and not (self.survive and any(end > 0 for end in self.ends.values())):
            text = f"{named(gone)} ended without a word: its node is gone, or cannot be reached"
            return _Cause(text, gone[0], is_known=True)
        if ending.silent_s:
            return _Cause(self._silence(ending.silent_s))
        first = next(iter(self.failures), None)
        is_asked = first is not None and first.exit_code in ASKED_TO_END
        if first is not None and not is_asked and not self._has_noticed(first):
            return _Cause(rank=first.rank)
        if ending.exit_code is not None and ending.exit_code < 0:
            where = f" on {socket.gethostname()}" if self.nodes.hosts else ""
            code = _code(ending.exit_code)
            return _Cause(f"the launcher{where} was killed ({code}), and its ranks with it")
        known = (
            self._lost_daemon(silent)
            or self._disconnected(silent)
            # The process that watches over a rank was killed with it.
            or next((_Cause(rank=it) for it in silent if it == named_rank(self.folder)), None)
            or self._lost_peer(first)
            or (None if first is None else _Cause(rank=first.rank))
        )
        return known or _Cause(
            f"ranks ended without a word ({_code(ending.exit_code)}); unfinished: "
            f"{named(self.unfinished)}. {explain_silence(self.folder, ending.exit_code)}"
        )

    def _silence(self, seconds: float) -> str:
        if self.records[0].has_begun:  # rank 0's records show the progress
            return f"no progress for {seconds:g} s; unfinished: {self.nodes.list(self.unfinished)}"
        waiting = [rank for rank in self.unfinished if not self.records[rank].has_begun]
        return f"not started after {seconds:g} s: {self.nodes.list(waiting)}"

    def _lost_daemon(self, silent: Sequence[int]) -> _Cause | None:
        """The launcher lost a daemon, and the ranks of its node with it, on a node that answers."""
        host = lost_daemon(self.folder)
        if host is None:
            return None
        there = [rank for rank in silent if self.nodes.hosts.get(rank) == host]
        said = first_words(self.folder, with_fix=True)
        who = self.nodes.list(there or silent or self.unfinished)
        text = f"{who} ended without a word: the launcher lost its daemon on {host}"
        return _Cause(text + (f": {said}" if said else ""), there[0] if there else None)

    def _disconnected(self, silent: Sequence[int]) -> _Cause | None:
        """A rank was cut off from another one, of which nothing else is known."""
        noticed = {rank for rank, end in self.ends.items() if end == PEER_DISCONNECTED}
        hosts = disconnected_hosts(self.folder, map(self.log, noticed))
        if hosts is None:
            return None
        noticed.update(aborted_ranks(self.folder))
        alive = noticed.union(read_last_collectives(self.folder))  # they could still write
        gone = [rank for rank in silent if rank not in alive]
        gone = [rank for rank in gone if self.nodes.hosts.get(rank) in hosts] or gone
        if not gone or not noticed:
            return None
        who, rank = self.nodes.list(gone), gone[0] if len(gone) == 1 else None
        by = self.nodes.list(sorted(noticed))
        one_of = "" if len(gone) == 1 else "one of "
        return _Cause(f"{one_of}{who} ended without a word, as {by} noticed", rank)

    def _lost_peer(self, first: RankEnd | None) -> _Cause | None:
        """A rank noticed that another one is gone, which is all that is known of that one."""
        if self.told is not None:
            rank, message = self.told.rank, self.told.message
        else:
            raised = None if first is None else last_exception(self.log(first.rank))
            if first is None or raised is None:
                return None
            rank, message = first.rank, raised
        by, peer = self.nodes.name(rank), _missed_peer(message)
        if peer is None:
            return _Cause(f"{message}: another rank is gone, as rank {by} noticed")
        found = _PEER_IS_GONE.search(message)
        after = "" if found is None else message[found.end("peer") :]
        return _Cause(f"rank {self.nodes.name(peer)}{after}, as rank {by} noticed", peer)

    def _failed(self, cause: _Cause) -> Verdict:
        """Return the end of a job that has failed, in the words of the rank to blame."""
        if self.told is not None and not cause.text and cause.rank == self.told.rank:
            return self._failed_as_told(self.told)
        text, more, last = cause.text or self._end_of(cause.rank), self._more(), self._last()
        logs = (self.folder / "rank-*.log", self.folder / LAUNCHER_LOG)
        shown = f"\n  output of the ranks: {logs[0]}, of the launcher: {logs[1]}{last}"
        kind: type[UserError | RunFailedError] = RunFailedError
        if cause.is_known or self._is_loss(cause):
            kind = JobLostError
        elif cause.rank is not None and self.ends.get(cause.rank) == EXIT_BAD_INPUT:
            kind = UserError
        outcome = Outcome(status="failed", error=text + more, rank=cause.rank)
        error = kind(text + more + self._last_lines(cause) + shown)
        return Verdict(outcome, error, cause.is_known)

    def _failed_as_told(self, told: Failure) -> Verdict:
        """Return the end of a job by what the rank to blame has written down."""
        host = f" ({told.hostname})" if self.nodes.hosts else ""
        error = told.message + (f" (on {told.hostname})" if host else "")
        if told.mendable:
            outcome = Outcome(status="failed", error=error, rank=told.rank)
            return Verdict(outcome, UserError(error))
        more, kind = self._more(), JobLostError if is_about_loss(told.message) else RunFailedError
        text = f"rank {told.rank}{host} failed: {told.message}{more}"
        where = f"\n  its traceback: {self.folder / 'error.json'}{self._last()}"
        outcome = Outcome(status="failed", error=error + more, rank=told.rank)
        return Verdict(outcome, kind(text + where))

    def _more(self) -> str:
        """Return lines on nodes that do not answer and on ranks that are stuck."""
        lost = [f"{node} does not answer: {why}" for node, why in self.nodes.lost.items()]
        stuck = describe_stuck_ranks(read_last_collectives(self.folder))
        return "".join(f"\n  {line}" for line in filter(None, [*lost, stuck]))

    def _last(self) -> str:
        """Return a line on the files of last collectives, where there are any."""
        if not read_last_collectives(self.folder):
            return ""
        return f"\n  what ranks did last: {last_collectives_file(self.folder, '*')}"

    def _is_loss(self, cause: _Cause) -> bool:
        """Return whether the ranks were lost by no failure of the program."""
        if cause.text or cause.rank is None:
            if self.ending.exit_code == EXIT_UNWRITABLE:  # a full disk is so in the next run, too
                return False
            return self.told is not None or is_about_peer(printed_error(self.folder / LAUNCHER_LOG))
        printed = printed_error(self.log(cause.rank))
        has_missed = printed is not None and is_about_peer(printed)
        return has_missed or self.ends.get(cause.rank, -signal.SIGKILL) in LOSSES

    def _end_of(self, rank: int | None) -> str:
        """Return how a rank ended that has written no error down."""
        assert rank is not None, "else there is a text"
        code, log = self.ends.get(rank, self.ending.exit_code), self.log(rank)
        roles = {each.role for each in self.records if each.has_begun}
        who = f"rank {self.nodes.name(rank)}"
        who += f", a {self.records[rank].role}," if len(roles) > 1 else ""
        if code == EXIT_UNWRITABLE and self._keeps_records:
            return self._unwritable(f"rank {self.nodes.name(rank)}", code, log)
        why = last_exception(log)
        if why is None and code == PEER_DISCONNECTED:  # MPI has ended it
            why = first_words(self.folder)
        why = why or explain_silence(self.folder, code, log)
        return f"{who} failed first ({_code(code)})" + (f": {why}" if why else "")

    def _last_lines(self, cause: _Cause) -> str:
        """Return the last lines of the log of the rank to blame; those of rank 0 were shown."""
        if cause.text or not cause.rank or self.ends.get(cause.rank) == EXIT_UNWRITABLE:
            return ""
        return "".join(f"\n  | {line}" for line in last_lines(self.log(cause.rank), SHOWN_LINES))

    @property
    def _keeps_records(self) -> bool:
        """Return whether there are records that a disk may have refused."""
        return record_file(self.folder, Run).exists() or any(self.folder.glob("rank-*.jsonl"))

    def _unwritable(self, who: str, code: int, log: Path) -> str:
        """Say that a rank failed and could not write down why."""
        words, folder = printed_error(log), self.folder
        said = f". The first error in {log.name}: {words}" if words else ""
        room = _room(folder)
        return f"{who} could not write its records to {folder} ({_code(code)}; {room}){said}"


class _RankRecords(NamedTuple):
    """End of a rank by its records."""

    has_begun: bool = False
    role: str = "worker"
    stopped_at: int | None = None
    """Updates after which it was stopped as asked."""
    lost: frozenset[int] = frozenset()
    """Ranks without which it went on."""


def _read_records(path: Path) -> _RankRecords:
    """Read a rank's file up to the first event that is damaged."""
    found = _RankRecords()
    with contextlib.suppress(OSError, ValueError):
        for event in read_events(path):
            found = found._replace(has_begun=True)
            if isinstance(event, StartedEvent):
                found = found._replace(role=event.role)
            elif isinstance(event, StoppedEvent):
                found = found._replace(stopped_at=event.step)
            elif isinstance(event, RecoveredEvent):
                found = found._replace(lost=found.lost.union(event.lost))
    return found


def _missed_peer(message: str) -> int | None:
    """Return the rank that an error says to be gone."""
    found = _PEER_IS_GONE.search(message)
    return int(found["peer"]) if found is not None and found["peer"] else None


def _room(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free:,} bytes are free there"
    except OSError as error:  # a mount that is gone
        return f"which cannot be read: {error.strerror}"


def _code(exit_code: int | None) -> str:
    """Return the exit code in words."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
