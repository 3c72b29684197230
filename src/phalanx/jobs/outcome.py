"""Judgement of an ended job by its records, by the ends of its ranks, by its launcher's words.

Launchers have been seen to report success after losing ranks, and a rank that is left alone reports
the death of another in words of its own: so the ranks decide, and one that died comes before one
that noticed.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from phalanx.errors import EXIT_STOPPED, JobLostError, RunFailedError, RunStoppedError, UserError
from phalanx.jobs.early_death import EarlyDeath
from phalanx.jobs.incomplete import read_incomplete
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
from phalanx.jobs.rank_failure import RankFailure
from phalanx.jobs.rank_log import ASKED_TO_END, log_file, read_ends, read_failures
from phalanx.records.events import Event, FinishedEvent, RecoveredEvent, StoppedEvent, stopped_text
from phalanx.records.failures import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_UNWRITABLE
from phalanx.records.files import rank_file, read_events, read_failure
from phalanx.records.last_collectives import (
    describe_stuck_ranks,
    last_collectives_file,
    read_last_collectives,
)
from phalanx.records.schema import Failure, Outcome

PEER_DISCONNECTED = 14
"""Exit code with which Open MPI ends a rank when the process of another is gone."""
LOSSES = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGPIPE, PEER_DISCONNECTED)
"""Exit codes of ranks that ended by no failure of their program."""
SHOWN_LINES = 20
"""Of the log of a program's rank that failed first."""


class RankNodes(NamedTuple):
    """Ranks on several nodes, as far as the launching node knows of them."""

    hosts: Mapping[int, str] = MappingProxyType({})
    """Of every rank; empty where all are on one node."""
    ends: Mapping[int, int] = MappingProxyType({})
    """Exit codes of ranks, negative for a signal, the first first."""
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
    """Of the launcher, or of the first process that failed, negative for a signal; 0 when all ended
    well; None when they were ended by their parent."""
    silent_s: float = 0.0
    """Seconds of silence after which they were ended; 0: for another reason."""
    reason: str = ""
    """Why they were ended, where it was no silence and no failure of a rank."""
    nodes: RankNodes = ONE_NODE


class Verdict(NamedTuple):
    """End of a job, for its record and for whoever has started it."""

    outcome: Outcome
    error: UserError | RunFailedError | RunStoppedError | None = None
    """None of a job that has completed: UserError for what the user can mend, RunFailedError for a
    failure, JobLostError for a loss."""
    is_known: bool = False
    """It comes before what a rank has reported, which may be what it saw of it."""


def judge_run(folder: Path, ranks: int, ending: JobExit, *, survive: bool = False) -> Verdict:
    """Judge a run whose ranks all write records, and whose own record this process keeps: it is
    complete when every rank has written that it came to its end. survive: the others go on when a
    rank dies."""
    return _Run(folder, ranks, ending, survive=survive).verdict()


def judge_program(folder: Path, ranks: int, ending: JobExit, *, survive: bool = False) -> Verdict:
    """Judge a program, which may write no records: it is complete when its processes have ended
    well. survive: as of `judge_run`."""
    return _Program(folder, ranks, ending, survive=survive).verdict()


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
_STATE_IS_LOST = re.compile(r"\b(?:run|state) is lost: .*\bdied\b")  # phalanx.parallel


def lost_ranks(ranks: int, ends: Mapping[int, int], *, end: int = 0) -> list[int] | None:
    """Return the ranks that died, where all others ended with the code `end`; None where they did
    not.

    ends: exit codes by rank, negative for a signal; none of a rank whose node is gone.
    """
    lost = [rank for rank in range(ranks) if ends.get(rank) != end]
    is_finished = len(lost) < ranks and all(ends.get(rank, -1) < 0 for rank in lost)
    return lost if is_finished else None


class _Cause(NamedTuple):
    """Why a job has not completed."""

    text: str = ""
    """Empty where that is for the end of the rank to tell."""
    rank: int | None = None
    """To blame, where one is."""
    is_known: bool = False
    """As of `Verdict`."""


class _Job(ABC):
    """An ended job, and all that tells of its end."""

    def __init__(self, folder: Path, ranks: int, ending: JobExit, *, survive: bool) -> None:
        self.folder, self.ranks, self.ending, self.survive = folder, ranks, ending, survive
        self.nodes, self.records = ending.nodes, _Records(folder)
        self.told = _failure(folder)
        """What the first rank to fail has written down."""
        self.misses_peer = self.told is not None and is_about_peer(self.told.message)
        self.ends = {**self.nodes.ends, **read_ends(folder)}
        self.unfinished = [rank for rank in range(ranks) if not self.has_finished(rank)]

    def verdict(self) -> Verdict:
        stopped = self.stopped()
        if stopped is not None:
            return stopped
        completed = self.completed()
        if completed is not None:
            return Verdict(completed)
        return self.failed(self._cause())

    @abstractmethod
    def stopped(self) -> Verdict | None:
        """Return the end of a job that has stopped as asked; None of another one."""

    @abstractmethod
    def completed(self) -> Outcome | None:
        """Return the outcome of a job that has come to its end; None of another one."""

    @abstractmethod
    def failed(self, cause: _Cause) -> Verdict:
        """Return the end of a job that has not."""

    @abstractmethod
    def has_finished(self, rank: int) -> bool:
        """Return whether a rank is known to have come to its end."""

    def log(self, rank: int) -> Path:
        return log_file(self.folder, rank)

    @property
    def logs(self) -> str:
        return (
            f"output of the ranks: {self.folder / 'rank-*.log'}, of the launcher: "
            f"{self.folder / LAUNCHER_LOG}"
        )

    @property
    def lost_nodes(self) -> list[str]:
        return [f"{node} does not answer: {why}" for node, why in self.nodes.lost.items()]

    @property
    def deaths_first(self) -> bool:
        """Return whether ranks that failed by themselves did so because others had died."""
        return False

    @cached_property
    def failures(self) -> list[RankFailure]:
        """Ends of ranks, the first first; of one that has noticed something after the others."""
        witness = self.told.rank if self.told is not None and self.misses_peer else None
        peer = _missed_peer(self.told.message) if self.told is not None else None
        noted = read_failures(self.folder, deaths_first=self.deaths_first or self.misses_peer)
        known = {failure.rank for failure in noted}
        more = {rank: end for rank, end in self.nodes.ends.items() if rank not in known}
        noted += [RankFailure(rank, end, 0.0) for rank, end in more.items() if end]
        found = [each for each in noted if each.rank != witness and each.rank in self.unfinished]

        def order(failure: RankFailure) -> tuple[bool, bool, bool]:
            is_asked = failure.exit_code in ASKED_TO_END
            return is_asked, self._has_noticed(failure), failure.rank != peer

        return sorted(found, key=order)

    def _has_noticed(self, failure: RankFailure) -> bool:
        """Return whether a rank has failed since another one was gone."""
        if failure.exit_code == PEER_DISCONNECTED:
            return True
        raised = last_exception(self.log(failure.rank)) if failure.exit_code >= 0 else None
        return raised is not None and is_about_peer(raised)

    def _cause(self) -> _Cause:
        """Return why the job has not completed, by what tells most of it."""
        ending, named = self.ending, self.nodes.list
        if ending.reason:
            return _Cause(ending.reason, is_known=True)
        if self.told is not None and not self.misses_peer:
            return _Cause(rank=self.told.rank)
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
            or self._named_by_launcher(silent)
            or self._lost_peer(first)
            or (None if first is None else _Cause(rank=first.rank))
        )
        return known or _Cause(
            f"ranks ended without a word ({_code(ending.exit_code)}); unfinished: "
            f"{named(self.unfinished)}. {explain_silence(self.folder, ending.exit_code)}"
        )

    def _silence(self, seconds: float) -> str:
        if self.records.first(0) is not None:  # rank 0's records show the progress
            return f"no progress for {seconds:g} s; unfinished: {self.nodes.list(self.unfinished)}"
        waiting = [rank for rank in self.unfinished if self.records.first(rank) is None]
        return f"not begun after {seconds:g} s: {self.nodes.list(waiting)}"

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

    def _named_by_launcher(self, silent: Sequence[int]) -> _Cause | None:
        """The process that watches over a rank was killed with it."""
        rank = named_rank(self.folder)
        return _Cause(rank=rank) if rank in silent else None

    def _lost_peer(self, first: RankFailure | None) -> _Cause | None:
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

    def is_loss(self) -> bool:
        """Return whether ranks, of which no end is to blame, were lost by no failure of the
        program."""
        return self.told is not None or is_about_peer(printed_error(self.folder / LAUNCHER_LOG))


class _Run(_Job):
    """A run whose ranks all write records."""

    def has_finished(self, rank: int) -> bool:
        return self.records.has_finished(rank)

    def stopped(self) -> Verdict | None:
        every = range(self.ranks)
        steps = {r: step for r in every if (step := self.records.stopped_at(r)) is not None}
        text = None
        if steps and self._lost([rank for rank in every if rank not in steps]) is not None:
            text = stopped_text(min(steps.values()))
        elif was_stopped(self.ending.exit_code) and not any(map(self.records.first, every)):
            text = "stopped as asked, before the first step"
        if text is None:
            return None
        return Verdict(Outcome(status="interrupted", error=text), RunStoppedError(text))

    def completed(self) -> Outcome | None:
        lost = self._lost(self.unfinished)
        if lost is None or self.told is not None:
            return None
        return read_incomplete(Outcome(status="completed", lost=lost), self.folder, self.ranks)

    def _lost(self, unfinished: Sequence[int]) -> list[int] | None:
        """Return the ranks without which the others have come to their end, as these have written
        down; None where they have not all, or one did not die but failed."""
        finished = [rank for rank in range(self.ranks) if rank not in unfinished]
        lost = set[int]().union(*(self.records.lost_by(rank) for rank in finished))
        are_known = lost.issuperset(unfinished) and (finished or not unfinished)
        has_failed = any(self.ends.get(rank, -1) > 0 for rank in lost)
        return sorted(lost) if are_known and not has_failed else None

    def failed(self, cause: _Cause) -> Verdict:
        told = self.told
        if told is not None and (cause.text or cause.rank != told.rank):
            told = None  # another rank is to blame
        host = f" ({told.hostname})" if told is not None and self.nodes.hosts else ""
        if told is not None and told.mendable:
            error = told.message + (on_host(told) if host else "")
            return Verdict(Outcome(status="failed", error=error, rank=told.rank), UserError(error))
        text = cause.text or (told.message if told else self._end_of(cause.rank))
        where = describe_stuck_ranks(read_last_collectives(self.folder))
        more = "".join(f"\n  {line}" for line in [*self.lost_nodes, *([where] if where else [])])
        on = on_host(told) if told is not None and host else ""
        outcome = Outcome(status="failed", error=text + on + more, rank=cause.rank)
        last = (
            f"\n  what ranks did last: {last_collectives_file(self.folder, '*')}"
            if read_last_collectives(self.folder)
            else ""
        )
        if told is None:
            kind = JobLostError if self._is_loss_of(cause) else RunFailedError
            return Verdict(outcome, kind(f"{text}{more}\n  {self.logs}{last}"))
        kind = JobLostError if is_about_loss(told.message) else RunFailedError
        traceback = f"\n  its traceback: {self.folder / 'error.json'}"
        return Verdict(
            outcome, kind(f"rank {told.rank}{host} failed: {text}{more}{traceback}{last}")
        )

    def _is_loss_of(self, cause: _Cause) -> bool:
        if cause.text or cause.rank is None:
            return cause.is_known or self.is_loss()
        code, printed = (
            self.ends.get(cause.rank, -signal.SIGKILL),
            printed_error(self.log(cause.rank)),
        )
        has_died = code < 0 or code in (*LOSSES, *ASKED_TO_END)
        return self.told is not None or (has_died if printed is None else is_about_peer(printed))

    def _end_of(self, rank: int | None) -> str:
        """Return how a rank ended that has written no error down."""
        assert rank is not None, "else there is a text"
        code, log = self.ends.get(rank, self.ending.exit_code), self.log(rank)
        if code == EXIT_UNWRITABLE:
            return _unwritable(self.folder, f"rank {self.nodes.name(rank)}", code, log)
        role = getattr(self.records.first(rank), "role", None)
        who = f"rank {self.nodes.name(rank)}" + (f", a {role}," if role else "")
        return f"{who} ended without a word ({_code(code)}): " + explain_silence(
            self.folder, code, log
        )

    @cached_property
    def failures(self) -> list[RankFailure]:
        """As of every job; those that died last, where the others survive that."""
        return sorted(super().failures, key=lambda each: self.survive and each.exit_code < 0)

    def _cause(self) -> _Cause:
        unwritable = [rank for rank in self.unfinished if self.ends.get(rank) == EXIT_UNWRITABLE]
        if unwritable and (self.told is None or self.misses_peer):
            return _Cause(rank=unwritable[0])
        if self.ending.exit_code == EXIT_UNWRITABLE and self.told is None:
            log = self.folder / LAUNCHER_LOG
            return _Cause(_unwritable(self.folder, "a rank", EXIT_UNWRITABLE, log))
        return super()._cause()


class _Program(_Job):
    """A program of the user's, of which the ends of the processes tell."""

    def has_finished(self, rank: int) -> bool:
        return self.ends.get(rank) == 0

    @property
    def deaths_first(self) -> bool:
        return self.survive

    def stopped(self) -> Verdict | None:
        codes = [failure.exit_code for failure in read_failures(self.folder)]
        is_stopped = was_stopped(self.ending.exit_code) and all(map(was_stopped, codes))
        if not is_stopped and not (
            self.survive and lost_ranks(self.ranks, self.ends, end=EXIT_STOPPED) is not None
        ):
            return None
        text = "stopped as asked: the same command goes on from its checkpoint"
        return Verdict(Outcome(status="interrupted", error=text), RunStoppedError(text))

    def completed(self) -> Outcome | None:
        if self.ending.reason:
            return None
        if self.survive:
            lost = lost_ranks(self.ranks, self.ends)
            return None if lost is None else Outcome(status="completed", lost=lost)
        has_unknown = bool(self.nodes.hosts) and bool(self.unfinished)
        is_complete = self.ending.exit_code == 0 and not has_unknown
        return Outcome(status="completed") if is_complete else None

    def failed(self, cause: _Cause) -> Verdict:
        if not cause.text and self.survive:  # the launcher's exit code tells nothing of an end
            reason = EarlyDeath(self.folder, self.ranks).why(is_over=True)
            cause = _Cause(reason, is_known=True) if reason else cause
        if cause.text or cause.rank is None:
            text = "\n  ".join([cause.text, *self.lost_nodes])
            kind = JobLostError if cause.is_known or self.is_loss() else RunFailedError
            outcome = Outcome(status="failed", error=text, rank=cause.rank)
            return Verdict(outcome, kind(f"{text}\n  {self.logs}"), cause.is_known)
        told = self.told if self.told is not None and self.told.rank == cause.rank else None
        code = EXIT_BAD_INPUT if told is not None and told.mendable else EXIT_FAILED
        code = self.ends.get(cause.rank, code)
        text = "\n  ".join([self._why(cause.rank, code), *self.lost_nodes])
        error = text.partition("\n")[0] if told is None else told.message
        error += on_host(told) if told is not None and self.nodes.hosts else ""
        outcome = Outcome(status="failed", error=error, rank=cause.rank)
        if code == EXIT_BAD_INPUT:
            return Verdict(outcome, UserError(text))
        is_loss = self.told is not None and is_about_loss(self.told.message)
        kind = JobLostError if is_loss or code in LOSSES else RunFailedError
        return Verdict(outcome, kind(text))

    def _why(self, rank: int, code: int) -> str:
        """Return how the rank failed, and the end of what it said; that of rank 0 was shown."""
        lines = last_lines(self.log(rank), SHOWN_LINES) if rank else []
        shown = "".join(f"  | {line}\n" for line in lines)
        raised = last_exception(self.log(rank))
        if raised is None and code == PEER_DISCONNECTED:  # MPI has ended it
            raised = first_words(self.folder)
        why = f"({_code(code)})" + (f": {raised}" if raised else "")
        return f"rank {self.nodes.name(rank)} failed first {why}\n{shown}  {self.logs}"


class _RankRecords:
    """One rank's records, as far as they tell how it ended."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.first: Event | None = None
        self.has_finished = False
        self.stopped_at: int | None = None
        self.lost: set[int] = set()
        with contextlib.suppress(OSError, ValueError):
            for event in events:
                self._add(event)

    def _add(self, event: Event) -> None:
        self.first = self.first or event
        self.has_finished = self.has_finished or isinstance(event, FinishedEvent)
        if isinstance(event, StoppedEvent):
            self.stopped_at = event.step
        elif isinstance(event, RecoveredEvent):
            self.lost.update(event.lost)


class _Records:
    """Records of one run, as far as they can be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ranks: dict[int, _RankRecords] = {}

    def first(self, rank: int) -> Event | None:
        """The event with which a rank began."""
        return self._of(rank).first

    def has_finished(self, rank: int) -> bool:
        return self._of(rank).has_finished

    def lost_by(self, rank: int) -> set[int]:
        """Return the ranks without which `rank` went on."""
        return self._of(rank).lost

    def stopped_at(self, rank: int) -> int | None:
        """Return the updates after which the rank was stopped as asked; None: it was not."""
        return self._of(rank).stopped_at

    def _of(self, rank: int) -> _RankRecords:
        """Read a rank's file once, up to the first event that is damaged."""
        if rank not in self._ranks:
            self._ranks[rank] = _RankRecords(read_events(rank_file(self._folder, rank)))
        return self._ranks[rank]


def on_host(failure: Failure) -> str:
    """Return what follows the message of a failure, of ranks on several nodes."""
    return f" (on {failure.hostname})"


def _failure(folder: Path) -> Failure | None:
    try:
        return read_failure(folder)
    except (OSError, ValueError):  # the last line of a rank may be torn
        return None


def _missed_peer(message: str) -> int | None:
    """Return the rank that an error says to be gone."""
    found = _PEER_IS_GONE.search(message)
    return int(found["peer"]) if found is not None and found["peer"] else None


def _unwritable(folder: Path, who: str, code: int, log: Path) -> str:
    """A sentence: a rank failed and could not write down why."""
    words = printed_error(log)
    said = f". The first error in {log.name}: {words}" if words else ""
    return f"{who} could not write its records to {folder} ({_code(code)}; {_room(folder)}){said}"


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
