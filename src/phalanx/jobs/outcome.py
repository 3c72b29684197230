"""The outcome of a run, judged by its records, its launcher's words and how its processes ended.

Launchers have been seen to report success after losing ranks, and a rank that is left alone reports
the death of another in words of its own: so the records decide, and a rank that died comes before
one that noticed.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from phalanx.errors import EXIT_STOPPED, JobLostError, RunFailedError, RunStoppedError, UserError
from phalanx.jobs.launcher_log import (
    LAUNCHER_LOG,
    aborted_ranks,
    disconnected_hosts,
    explain_silence,
    failed_ranks,
    first_words,
    last_lines,
    lost_daemon,
    named_processes,
)
from phalanx.records.events import Event, FinishedEvent, RecoveredEvent, StoppedEvent, stopped_text
from phalanx.records.failures import EXIT_UNWRITABLE
from phalanx.records.files import rank_file, read_events, read_failure
from phalanx.records.last_collectives import (
    describe_stuck_ranks,
    last_collectives_file,
    read_last_collectives,
)
from phalanx.records.schema import Failure, Outcome


class RankNodes(NamedTuple):
    """Ranks on several nodes, as far as the launching node knows of them."""

    hosts: Mapping[int, str] = MappingProxyType({})
    """Of every rank; empty where all are on one node."""
    ends: Mapping[int, int] = MappingProxyType({})
    """Exit codes of ranks of other nodes, negative for a signal, the first first."""
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
    """Exit of a run's processes, as their parent saw it."""

    exit_code: int | None
    """Of the first process that failed, negative for a signal; 0 when all ended well; None when
    they fell silent and were ended."""
    rank: int | None = None
    """Whose exit code it is; None: the launcher's."""
    silent_s: float = 0.0
    """Seconds of silence after which they were ended; 0: for another reason."""
    reason: str = ""
    """Why they were ended, where it was no silence and no failure of a rank."""
    nodes: RankNodes = ONE_NODE


def determine_outcome(folder: Path, ranks: int, ending: JobExit) -> Outcome:
    """Return how the run ended, and what its ranks did last where that differs."""
    records = _Records(folder)
    steps = {rank: step for rank in range(ranks) if (step := records.stopped_at(rank)) is not None}
    unstopped = [rank for rank in range(ranks) if rank not in steps]
    if steps and _lost_ranks(records, ranks, unstopped) is not None:
        return Outcome(status="interrupted", error=stopped_text(min(steps.values())))
    if was_stopped(ending.exit_code) and not any(records.first(rank) for rank in range(ranks)):
        return Outcome(status="interrupted", error="stopped as asked, before the first step")
    outcome = _outcome_of(records, ranks, ending)
    failure = records.failure
    if outcome.status == "completed" or (failure is not None and failure.mendable):
        return outcome
    lost = (f"{node} does not answer: {why}" for node, why in ending.nodes.lost.items())
    where = describe_stuck_ranks(read_last_collectives(folder))
    lines = [outcome.error or outcome.status, *lost, *([] if where is None else [where])]
    return msgspec.structs.replace(outcome, error="\n  ".join(lines))


def was_stopped(exit_code: int | None) -> bool:
    """Return whether a process ended because SIGUSR1 asked it to, at the latest before its loop."""
    number = signal.SIGUSR1
    return exit_code in (EXIT_STOPPED, -number, 128 + number)


def raise_failure(folder: Path, outcome: Outcome) -> None:
    """Raise the error of a run, as `error_of` returns it; return for a completed one."""
    if outcome.status != "completed":
        raise error_of(folder, outcome)


def error_of(folder: Path, outcome: Outcome) -> UserError | RunFailedError | RunStoppedError:
    """Return the error of a run that has not completed: UserError for what the user can mend,
    RunFailedError for a failure, JobLostError for a loss."""
    if outcome.status == "interrupted":
        return RunStoppedError(outcome.error)
    error = outcome.error or outcome.status
    told, host = _failure(folder), ""
    failure = told
    if failure is not None and not error.startswith(failure.message):
        failure = None  # another rank is to blame
    elif failure is not None and error.startswith(failure.message + on_host(failure)):
        host = f" ({failure.hostname})"
        error = failure.message + error.removeprefix(failure.message + on_host(failure))
    last = (
        f"\n  what ranks did last: {last_collectives_file(folder, '*')}"
        if read_last_collectives(folder)
        else ""
    )
    if failure is None:
        is_loss = told is not None or is_about_peer(last_lines(folder))
        kind = JobLostError if is_loss else RunFailedError
        return kind(f"{error}\n  the launcher's output: {folder / LAUNCHER_LOG}{last}")
    if failure.mendable:
        return UserError(failure.message + (on_host(failure) if host else ""))
    kind = JobLostError if is_about_loss(failure.message) else RunFailedError
    return kind(
        f"rank {failure.rank}{host} failed: {error}\n  its traceback: {folder / 'error.json'}{last}"
    )


class _RankRecords:
    """One rank's records, as far as they tell how it ended."""

    def __init__(self) -> None:
        self.first: Event | None = None
        self.has_finished = False
        self.stopped_at: int | None = None
        self.lost: set[int] = set()

    def add(self, event: Event) -> None:
        self.first = self.first or event
        self.has_finished = self.has_finished or isinstance(event, FinishedEvent)
        if isinstance(event, StoppedEvent):
            self.stopped_at = event.step
        elif isinstance(event, RecoveredEvent):
            self.lost.update(event.lost)


class _Records:
    """Records of one run, as far as they can be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failure = _failure(folder)
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
            found = self._ranks[rank] = _RankRecords()
            with contextlib.suppress(OSError, ValueError):
                for event in read_events(rank_file(self.folder, rank)):
                    found.add(event)
        return self._ranks[rank]


def is_about_peer(error: str | None) -> bool:
    """Return whether an error is one of a rank that missed another, or there is none."""
    return error is None or _PEER_IS_GONE.search(error) is not None


def is_about_loss(error: str | None) -> bool:
    """Return whether an error is due to the death of other ranks, or there is none."""
    return is_about_peer(error) or _STATE_IS_LOST.search(error or "") is not None


def on_host(failure: Failure) -> str:
    """Return what follows the message of a failure, of ranks on several nodes."""
    return f" (on {failure.hostname})"


def _failure(folder: Path) -> Failure | None:
    try:
        return read_failure(folder)
    except (OSError, ValueError):  # the last line of a rank may be torn
        return None


def _outcome_of(records: _Records, ranks: int, ending: JobExit) -> Outcome:
    failure = records.failure
    if failure is not None and not is_about_peer(failure.message):
        error = failure.message + (on_host(failure) if ending.nodes.hosts else "")
        return Outcome(status="failed", error=error, rank=failure.rank)
    unfinished = [rank for rank in range(ranks) if not records.has_finished(rank)]
    lost = _lost_ranks(records, ranks, unfinished)
    has_failed = ending.rank in (lost or ()) and (ending.exit_code or 0) > 0  # it did not die
    if lost is not None and failure is None and not has_failed:
        return Outcome(status="completed", lost=lost)
    found = _cause(records, unfinished, ending)
    if found is not None:
        return found
    if failure is not None:
        return _lost_peer(failure, ending.nodes)
    return Outcome(
        status="failed",
        error=f"ranks ended without a word ({_code(ending.exit_code)}); unfinished: "
        f"{ending.nodes.list(unfinished)}. {explain_silence(records.folder, ending.exit_code)}",
    )


def _lost_ranks(records: _Records, ranks: int, unfinished: Sequence[int]) -> list[int] | None:
    """Return the ranks without which the others have come to their end, as these have written
    down; None where they have not all. unfinished: of `ranks`."""
    finished = [rank for rank in range(ranks) if rank not in unfinished]
    lost = set[int]().union(*(records.lost_by(rank) for rank in finished))
    are_known = lost.issuperset(unfinished) and (finished or not unfinished)
    return sorted(lost) if are_known else None


_PEER_IS_GONE = re.compile(
    r"\brank (?P<peer>\d+)(?: \([^)]*\))? failed: its process is gone"  # phalanx.comm
    r"|gloo/.*(?:Connection (?:was likely )?(?:closed|reset)|Broken pipe)"
    r"|remote worker crashing"  # PyTorch's hint below an error of Gloo
)
_STATE_IS_LOST = re.compile(r"\b(?:run|state) is lost: .*\bdied\b")  # phalanx.parallel


def _lost_peer(failure: Failure, nodes: RankNodes) -> Outcome:
    """A rank noticed that another one is gone, which is all that is known of that one."""
    found = _PEER_IS_GONE.search(failure.message)
    peer = found["peer"] if found else None
    if found is None or peer is None:
        error = (
            f"{failure.message}: another rank is gone, as rank {nodes.name(failure.rank)} noticed"
        )
        return Outcome(status="failed", error=error)
    named = f"rank {nodes.name(int(peer))}{failure.message[found.end('peer') :]}"
    error = f"{named}, as rank {nodes.name(failure.rank)} noticed"
    return Outcome(status="failed", error=error, rank=int(peer))


def _cause(records: _Records, unfinished: Sequence[int], ending: JobExit) -> Outcome | None:
    """Why ranks ended that wrote no error down, where anything tells."""
    code, folder, named = ending.exit_code, records.folder, ending.nodes.list
    there = [rank for rank in unfinished if ending.nodes.hosts.get(rank) in ending.nodes.lost]
    if there:
        error = f"{named(there)} ended without a word: its node is gone, or cannot be reached"
        return Outcome(status="failed", error=error, rank=there[0])
    if ending.reason:
        return Outcome(status="failed", error=ending.reason)
    if code is None and ending.silent_s:
        error = f"no progress for {ending.silent_s:g} s; unfinished: {named(unfinished)}"
        if records.first(0) is None:  # rank 0's records show the progress
            waiting = [rank for rank in unfinished if records.first(rank) is None]
            error = f"not begun after {ending.silent_s:g} s: {named(waiting)}"
        return Outcome(status="failed", error=error)
    if code is not None and code < 0 and ending.rank is None:
        where = f" on {socket.gethostname()}" if ending.nodes.hosts else ""
        error = f"the launcher{where} was killed ({_code(code)}), and its ranks with it"
        return Outcome(status="failed", error=error)
    witness = records.failure.rank if records.failure else None  # it was alive to write its error
    reported = [rank for rank in failed_ranks(folder) if rank != witness]
    if code == EXIT_UNWRITABLE or (reported and witness is not None):
        rank = next(iter(reported), ending.rank)
        return Outcome(status="failed", error=_unwritable(folder, code, besides=witness), rank=rank)
    rank = _first_to_end(records, [rank for rank in unfinished if rank != witness], ending)
    lost = _daemon_lost(folder, unfinished, ending.nodes)
    noticed = _ranks_that_noticed(folder, ending)
    if lost is None and noticed:
        lost = _disconnected(folder, [r for r in unfinished if r != witness], noticed, ending.nodes)
    if rank is None or (rank in noticed and lost is not None):
        return lost
    role = getattr(records.first(rank), "role", None)
    who = f"{named([rank])}, a {role}," if role else named([rank])
    why = explain_silence(folder, code, of_a_rank=True, besides=witness)
    error = f"{who} ended without a word ({_code(code)}): {why}"
    return Outcome(status="failed", error=error, rank=rank)


def _daemon_lost(folder: Path, unfinished: Sequence[int], nodes: RankNodes) -> Outcome | None:
    """The launcher lost a daemon, and the ranks of its node with it, on a node that answers."""
    host = lost_daemon(folder)
    if host is None:
        return None
    ranks = [rank for rank in unfinished if nodes.hosts.get(rank) == host]
    who = nodes.list(ranks or unfinished)
    said = first_words(folder, with_fix=True)
    error = f"{who} ended without a word: the launcher lost its daemon on {host}"
    error += f": {said}" if said else ""
    return Outcome(status="failed", error=error, rank=ranks[0] if ranks else None)


def _ranks_that_noticed(folder: Path, ending: JobExit) -> set[int]:
    """Return the ranks that Open MPI ended because the process of another one was gone."""
    ended = {rank for rank, code in ending.nodes.ends.items() if code == PEER_DISCONNECTED}
    if ending.rank is not None and ending.exit_code == PEER_DISCONNECTED:
        ended.add(ending.rank)
    return ended.union(aborted_ranks(folder)) if disconnected_hosts(folder) is not None else set()


def _disconnected(
    folder: Path, unfinished: Sequence[int], noticed: set[int], nodes: RankNodes
) -> Outcome | None:
    """A rank was cut off from another one, of which nothing else is known."""
    alive = noticed.union(read_last_collectives(folder))  # they could still write
    gone = [rank for rank in unfinished if rank not in alive]
    hosts = disconnected_hosts(folder) or []
    gone = [rank for rank in gone if nodes.hosts.get(rank) in hosts] or gone
    if not gone:
        return None
    who, rank = nodes.list(gone), gone[0] if len(gone) == 1 else None
    by = nodes.list(sorted(noticed))
    error = f"{'' if len(gone) == 1 else 'one of '}{who} ended without a word, as {by} noticed"
    return Outcome(status="failed", error=error, rank=rank)


def _unwritable(folder: Path, code: int | None, *, besides: int | None) -> str:
    """A sentence: a rank failed and could not write down why."""
    words = last_lines(folder, besides=besides)
    said = f". The first error in {LAUNCHER_LOG}: {words}" if words else ""
    return f"a rank could not write its records to {folder} ({_code(code)}; {_room(folder)}){said}"


def _room(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free:,} bytes are free there"
    except OSError as error:  # a mount that is gone
        return f"which cannot be read: {error.strerror}"


def _first_to_end(records: _Records, suspects: Sequence[int], ending: JobExit) -> int | None:
    """The rank of `suspects` whose end made the others end; None where nothing tells.

    Launchers of all MPIs name the process, some the rank.
    """
    if ending.rank is not None:
        return ending.rank if ending.rank in suspects else None
    own = [rank for rank, code in ending.nodes.ends.items() if code not in _ASKED_TO_END]
    own.sort(key=lambda rank: ending.nodes.ends[rank] == PEER_DISCONNECTED)  # stable
    for rank in own:
        if rank in suspects:
            return rank
    began = {getattr(records.first(rank), "process_id", None): rank for rank in suspects}
    for process in named_processes(records.folder):
        if process.is_killed_by_hydra and len(suspects) > 1:
            continue
        if process.process_id in began:
            return began[process.process_id]
        if process.rank in suspects:
            return process.rank
    return None


PEER_DISCONNECTED = 14
"""Exit code with which Open MPI ends a rank when the process of another is gone."""
_ASKED_TO_END = (0, -signal.SIGTERM, 128 + signal.SIGTERM)


def _code(exit_code: int | None) -> str:
    """Return the exit code in words."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
