"""How a run ended, judged by its records and by what its launcher said."""

import errno
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from phalanx.errors import EXIT_STOPPED, JobLostError, RunFailedError, UserError
from phalanx.jobs.launcher_log import LAUNCHER_LOG
from phalanx.jobs.outcome import JobExit, RankNodes, Verdict, judge
from phalanx.jobs.rank_log import log_file
from phalanx.jobs.rank_notes import RankEnd, note
from phalanx.records.events import FinishedEvent, RecoveredEvent, StartedEvent, StoppedEvent
from phalanx.records.files import EventWriter, rank_file, read_failure, write_failure
from phalanx.records.schema import Failure, Outcome

OPEN_MPI = "prterun noticed that process rank 1 with PID 1001 on node vm exited on\nsignal 9"
HOSTS = {0: "n0", 1: "n1", 2: "n2"}
MPICH = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 1001 RUNNING AT vm"


def judged(folder: Path, ranks: int, ending: JobExit, *, survive: bool = False) -> Outcome:
    return judge(folder, ranks, ending, survive=survive).outcome


def said(verdict: Verdict, kind: type[Exception] = RunFailedError) -> str:
    """Return the words of an error of that kind."""
    assert isinstance(verdict.error, kind), verdict
    return str(verdict.error)


def write_rank(
    folder: Path, rank: int, *, finished: bool, lost: Sequence[Sequence[int]] = ()
) -> None:
    writer = EventWriter(rank_file(folder, rank))
    writer.add(
        StartedEvent(
            at_s=0.1,
            rank=rank,
            hostname="vm",
            process_id=1000 + rank,
            local_rank=rank,
            threads=1,
            startup_s=0.1,
            parameters=10,
            train_samples=10,
            validation_samples=10,
            role="worker" if rank else "server",
        )
    )
    for ranks in lost:
        writer.add(RecoveredEvent(at_s=0.5, step=3, lost=list(ranks), recovery_s=0.1))
    if finished:
        writer.add(FinishedEvent(at_s=1.0, parameters_sha256="", peak_memory_bytes=1))
        note(folder, RankEnd(rank, 0, 1.0))
    writer.close()


def test_a_run_is_complete_when_every_rank_has_ended_well(tmp_path: Path) -> None:
    """A launcher said that all was well after the loss of a node."""
    for rank in range(2):
        write_rank(tmp_path, rank, finished=True)
    assert judged(tmp_path, 2, JobExit(0)).status == "completed"
    assert judged(tmp_path, 2, JobExit(139)).status == "completed", "the launcher alone has crashed"
    for ending in (JobExit(1), JobExit(0, nodes=RankNodes(hosts=HOSTS))):
        outcome = judged(tmp_path, 3, ending)
        assert outcome.status == "failed"
        assert "unfinished: rank 2" in (outcome.error or "")
    assert judged(tmp_path, 3, JobExit(0)).status == "completed", "on this machine it is believed"


def test_a_run_without_those_that_died_is_complete_when_the_others_say_so(tmp_path: Path) -> None:
    for rank, finished in enumerate((False, True, True, False)):
        write_rank(tmp_path, rank, finished=finished, lost=[[3], [0]] if finished else [])
    completed = Outcome(status="completed", lost=[0, 3])
    assert judged(tmp_path, 4, JobExit(0), survive=True) == completed
    assert judged(tmp_path, 4, JobExit(9), survive=True) == completed
    note(tmp_path, RankEnd(3, -9, 1.0))
    assert judged(tmp_path, 4, JobExit(137), survive=True) == completed
    assert judged(tmp_path, 4, JobExit(137)).status == "failed", "nobody survives that"
    note(tmp_path, RankEnd(0, 3, 2.0))
    failed = judged(tmp_path, 4, JobExit(3), survive=True)
    assert (failed.status, failed.rank) == ("failed", 0), "it ended by itself"


def test_a_run_that_was_stopped_after_losses_was_stopped(tmp_path: Path) -> None:
    for rank in range(3):
        write_rank(tmp_path, rank, finished=False, lost=[[1]] if rank != 1 else [])
    for rank in (0, 2):
        writer = EventWriter(rank_file(tmp_path, rank))
        writer.add(StoppedEvent(at_s=1.0, step=7))
        writer.close()
        note(tmp_path, RankEnd(rank, EXIT_STOPPED, 1.0))
    outcome = judged(tmp_path, 3, JobExit(0), survive=True)
    assert outcome.status == "interrupted"
    assert "stopped after step 7" in (outcome.error or "")
    note(tmp_path, RankEnd(1, 3, 1.0))
    outcome = judged(tmp_path, 3, JobExit(75), survive=True)
    assert (outcome.status, outcome.rank) == ("failed", 1), "the others were ended for that"


def test_a_run_that_was_stopped_before_its_loop_has_no_checkpoint_to_go_on_from(
    tmp_path: Path,
) -> None:
    for rank in range(2):
        note(tmp_path, RankEnd(rank, -signal.SIGUSR1, 1.0))
    stopped = judged(tmp_path, 2, JobExit(128 + signal.SIGUSR1))
    assert stopped == Outcome(status="interrupted", error="stopped as asked, before the first step")
    note(tmp_path, RankEnd(0, EXIT_STOPPED, 1.0))
    saved = judged(tmp_path, 2, JobExit(EXIT_STOPPED))
    assert (saved.error or "").endswith("the same command resumes from its checkpoint")


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (-9, "SIGKILL): killed, perhaps because memory ran out"),
        (-6, "SIGABRT): aborted (SIGABRT)"),
        (-11, "SIGSEGV): crashed (SIGSEGV)"),
        (3, "exit code 3)"),
    ],
)
@pytest.mark.parametrize("launcher", [OPEN_MPI, MPICH, ""])
def test_the_rank_that_died_is_named(tmp_path: Path, end: int, why: str, launcher: str) -> None:
    """Rank 1 was killed; rank 0, which Hydra killed after it, was named. Whoever watches over a
    rank tells how it has ended, whatever the launcher says."""
    for rank in range(3):
        write_rank(tmp_path, rank, finished=False)
    note(tmp_path, RankEnd(1, end, 1.0))
    note(tmp_path, RankEnd(0, 143, 0.5))  # asked to end
    (tmp_path / LAUNCHER_LOG).write_text(launcher.replace("rank 1 with", "rank 0 with"))
    verdict = judge(tmp_path, 3, JobExit(137))
    assert verdict.outcome.rank == 1
    assert verdict.outcome.error == f"rank 1, a worker, failed first ({why}"
    assert said(verdict).startswith("rank 1, a worker, failed first")


def test_a_rank_whose_watcher_died_with_it_is_named_by_the_launcher(tmp_path: Path) -> None:
    (tmp_path / LAUNCHER_LOG).write_text(OPEN_MPI)
    outcome = judged(tmp_path, 2, JobExit(137))
    assert outcome.rank == 1
    assert (outcome.error or "").startswith("rank 1 failed first (exit code 137): killed")


def test_ranks_that_never_began_are_not_blamed_where_nobody_names_them(tmp_path: Path) -> None:
    (tmp_path / LAUNCHER_LOG).write_text("")
    outcome = judged(tmp_path, 2, JobExit(1))
    assert outcome.rank is None
    assert "MPI could not start" in (outcome.error or "")


def test_ranks_that_fell_silent(tmp_path: Path) -> None:
    assert (
        judged(tmp_path, 2, JobExit(None, silent_s=5)).error == "not started after 5 s: rank 0, 1"
    )
    write_rank(tmp_path, 0, finished=True)
    assert (
        judged(tmp_path, 2, JobExit(None, silent_s=5)).error
        == "no progress for 5 s; unfinished: rank 1"
    )


@pytest.mark.parametrize(("mendable", "kind"), [(True, UserError), (False, RunFailedError)])
def test_the_first_error_decides(tmp_path: Path, mendable: bool, kind: type[Exception]) -> None:
    write_failure(tmp_path, Failure(rank=1, mendable=mendable, message="so it is", traceback=""))
    verdict = judge(tmp_path, 2, JobExit(1))
    assert verdict.outcome == Outcome(status="failed", error="so it is", rank=1)
    assert "so it is" in said(verdict, kind)


def test_an_error_that_no_rank_could_write_down_is_told(tmp_path: Path) -> None:
    """A rank could not import what it needed. The study said that it was killed, perhaps for want
    of memory; the error stood in the launcher's log, to which nobody was sent."""
    text = (
        "a warning of something else\n"
        "Traceback (most recent call last):\n"
        '  File "rank.py", line 1, in <module>\n'
        "    from a.b import c\n"
        "ImportError: cannot import name 'c' from 'a.b'\n"
        "prterun has exited due to process rank 0\n"
    )
    (tmp_path / LAUNCHER_LOG).write_text(text)
    error = judged(tmp_path, 2, JobExit(1)).error or ""
    assert error.endswith("error in launcher.log: ImportError: cannot import name 'c' from 'a.b'")
    log_file(tmp_path, 0).write_text(text)
    note(tmp_path, RankEnd(0, 1, 1.0))
    error = judged(tmp_path, 2, JobExit(1)).error or ""
    expected = "rank 0 failed first (exit code 1): ImportError: cannot import name 'c' from 'a.b'"
    assert error == expected


def test_ranks_that_nobody_knows_of_may_have_been_killed(tmp_path: Path) -> None:
    (tmp_path / LAUNCHER_LOG).write_text(MPICH)
    error = judged(tmp_path, 2, JobExit(137)).error or ""
    assert "Killed, perhaps because memory ran out" in error


GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:12481"
GONE = "PeerFailedError: rank 0 failed: its process is gone (its last collectives: x.json)"


ABORTED = 'prterun has exited due to process rank 1 with PID 0 on node vm calling\n"abort".\n'


def found_by_rank_1(folder: Path, message: str) -> None:
    """Rank 0 is gone, and rank 1 was the first to write something down."""
    for rank in range(2):
        write_rank(folder, rank, finished=False)
    write_failure(folder, Failure(rank=1, mendable=False, message=message, traceback=""))


@pytest.mark.parametrize("message", [GLOO, GONE, GONE.replace("rank 0", "rank 0 (n0)")])
@pytest.mark.parametrize(
    ("end", "log", "error"),
    [
        (-9, "", "rank 0, a server, failed first (SIGKILL): killed, "),
        (None, OPEN_MPI.replace("rank 1", "rank 0"), "rank 0, a server, failed first"),
        (74, "", "rank 0 could not write its records"),
        (-6, "", "failed first (SIGABRT): aborted"),
    ],
)
def test_the_rank_that_died_is_blamed_and_not_the_one_that_noticed(
    tmp_path: Path, message: str, end: int | None, log: str, error: str
) -> None:
    """Gloo's survivor wrote down "Connection closed by peer", and was named as the one to fail."""
    found_by_rank_1(tmp_path, message)
    log_file(tmp_path, 1).write_text(f"phalanx: rank 1: {message}\n")
    (tmp_path / LAUNCHER_LOG).write_text(f"{ABORTED}{log}")
    note(tmp_path, RankEnd(1, 1, 1.0))
    if end is not None:
        note(tmp_path, RankEnd(0, end, 2.0))
    verdict = judge(tmp_path, 2, JobExit(1))
    assert verdict.outcome.rank == 0
    assert error in (verdict.outcome.error or "")
    assert isinstance(verdict.error, JobLostError) == (end in (None, -9)), "else by its program"
    assert "rank 1" not in said(verdict)


@pytest.mark.parametrize("by_log", [True, False])
@pytest.mark.parametrize("message", [GLOO, GONE])
def test_the_rank_of_a_program_that_died_is_blamed_and_not_the_one_that_noticed(
    tmp_path: Path, message: str, by_log: bool
) -> None:
    """The rank that had noticed the death, and ended first, was said to have failed first. What it
    missed it tells in `error.json`, or in its log alone."""
    if by_log:
        log_file(tmp_path, 1).write_text(f"Traceback (most recent call last):\n{message}\n")
    else:
        found_by_rank_1(tmp_path, message)
    note(tmp_path, RankEnd(1, 1, 1.0))
    if message == GONE:
        verdict = judge(tmp_path, 2, JobExit(1))
        assert isinstance(verdict.error, JobLostError)
        assert said(verdict).startswith("rank 0 failed: its process is gone"), "as rank 1 noticed"
    note(tmp_path, RankEnd(0, -9, 2.0))
    verdict = judge(tmp_path, 2, JobExit(1))
    assert isinstance(verdict.error, JobLostError)
    who = "rank 0" if by_log else "rank 0, a server,"
    assert said(verdict).startswith(f"{who} failed first (SIGKILL): killed")
    assert verdict.outcome.rank == 0


def test_a_program_whose_only_failure_was_asked_for_is_told_by_it(tmp_path: Path) -> None:
    note(tmp_path, RankEnd(1, -15, 1.0))
    assert said(judge(tmp_path, 2, JobExit(143))).startswith("rank 1 failed first (SIGTERM")


def test_a_peer_that_is_gone_is_named_where_its_end_is_not_known(tmp_path: Path) -> None:
    found_by_rank_1(tmp_path, GONE)
    (tmp_path / LAUNCHER_LOG).write_text(f"phalanx: rank 1: {GONE}\n{ABORTED}")
    verdict = judge(tmp_path, 2, JobExit(1))
    assert verdict.outcome.rank == 0
    assert verdict.outcome.error == (
        "rank 0 failed: its process is gone (its last collectives: x.json), as rank 1 noticed"
    )
    assert said(verdict).startswith("rank 0 failed: its process is gone")


def test_a_rank_that_called_abort_is_not_taken_for_the_one_that_died(tmp_path: Path) -> None:
    """Two ranks noticed that a server was gone; the one that did not write it down was blamed."""
    message = GONE.replace("rank 0", "rank 2")
    for rank in range(3):
        write_rank(tmp_path, rank, finished=False)
    write_failure(tmp_path, Failure(rank=0, mendable=False, message=message, traceback=""))
    (tmp_path / LAUNCHER_LOG).write_text(f"phalanx: rank 0: {message}\n{ABORTED}")
    assert judged(tmp_path, 3, JobExit(1)).rank == 2


def test_an_error_of_a_rank_comes_before_the_deaths_that_follow_it(tmp_path: Path) -> None:
    found_by_rank_1(tmp_path, "ZeroDivisionError: made")
    note(tmp_path, RankEnd(0, -9, 1.0))
    outcome = judged(tmp_path, 2, JobExit(137))
    assert (outcome.rank, outcome.error) == (1, "ZeroDivisionError: made")


def test_a_pipe_of_its_own_that_broke_is_no_death_of_another(tmp_path: Path) -> None:
    message = "BrokenPipeError: [Errno 32] Broken pipe"
    found_by_rank_1(tmp_path, message)
    outcome = judged(tmp_path, 2, JobExit(1))
    assert (outcome.rank, outcome.error) == (1, message)


def test_a_full_disk_is_no_loss(tmp_path: Path) -> None:
    """Of MPICH none knows which rank it was, and its peers notice that it is gone: the exit code
    was that of a loss, after which the same command is to go on, onto the same disk."""
    found_by_rank_1(tmp_path, GONE)
    verdict = judge(tmp_path, 2, JobExit(74))
    assert said(verdict).startswith("a rank could not write its records")
    assert not isinstance(verdict.error, JobLostError)


def test_the_reason_stays_where_the_disk_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    write_rank(tmp_path, 0, finished=True)
    monkeypatch.setattr("shutil.disk_usage", refuse)
    note(tmp_path, RankEnd(1, 74, 1.0))
    error = judged(tmp_path, 2, JobExit(74)).error or ""
    assert "could not write its records" in error
    assert "which cannot be read: Stale file handle" in error


@pytest.mark.parametrize("message", [None, GONE])
def test_a_launcher_that_was_killed_is_recognised(tmp_path: Path, message: str | None) -> None:
    if message:
        found_by_rank_1(tmp_path, message)
    note(tmp_path, RankEnd(0, 143, 1.0))  # asked to end by what is left of the launcher
    error = judged(tmp_path, 2, JobExit(-9)).error
    assert error == "the launcher was killed (SIGKILL), and its ranks with it"


@pytest.mark.parametrize(
    ("code", "log", "error"),
    [
        (134, "terminate called after throwing an instance of 'std::bad_alloc'", "Out of memory ("),
        (134, "", "Aborted (SIGABRT)"),
        (139, "", "Crashed (SIGSEGV)"),
        (137, "", "Killed, perhaps because memory ran out"),
        (1, "", "Killed, perhaps because memory ran out, or MPI could not start"),
        (2, "phalanx: /a/run.json does not exist\n", "error in launcher.log: /a/run.json does not"),
    ],
)
def test_the_end_of_ranks_that_say_nothing(tmp_path: Path, code: int, log: str, error: str) -> None:
    (tmp_path / LAUNCHER_LOG).write_text(log)
    words = judged(tmp_path, 2, JobExit(code)).error or ""
    assert error in words
    assert f"(exit code {code})" in words


def test_torn_records_are_no_obstacle(tmp_path: Path) -> None:
    """A rank's last words may be cut short, or be what a disk made of them."""
    write_rank(tmp_path, 0, finished=True)
    rank_file(tmp_path, 1).write_bytes(b"\xff\xfe{\n")
    (tmp_path / "error.json").write_bytes(b'{"rank": 1, "mes')
    verdict = judge(tmp_path, 2, JobExit(1))
    assert "unfinished: rank 1." in (verdict.outcome.error or "")
    assert "unfinished: rank 1" in said(verdict)
    with pytest.raises(UserError, match=r"error\.json is damaged"):
        read_failure(tmp_path)


@pytest.mark.parametrize("code", [0, 255, None])
def test_ranks_of_a_node_that_does_not_answer_are_lost_whatever_the_launcher_says(
    tmp_path: Path, code: int | None
) -> None:
    for rank in range(3):
        write_rank(tmp_path, rank, finished=False)
    nodes = RankNodes(hosts=HOSTS, lost={"n1": "ssh: no route to host"})
    outcome = judged(tmp_path, 3, JobExit(code, nodes=nodes))
    assert (outcome.status, outcome.rank) == ("failed", 1)
    assert outcome.error == (
        "rank 1 (n1) ended without a word: its node is gone, or cannot be reached\n"
        "  n1 does not answer: ssh: no route to host"
    )


@pytest.mark.parametrize(
    "ends",
    [
        {0: -15, 2: -9, 1: -11},
        {0: -15, 1: 14, 2: -9},  # Open MPI ended rank 1, as rank 2 was gone
    ],
)
def test_a_rank_of_another_node_that_died_first_is_named_with_its_host(
    tmp_path: Path, ends: dict[int, int]
) -> None:
    for rank in range(3):
        write_rank(tmp_path, rank, finished=False)
    for at_s, (rank, end) in enumerate(ends.items()):
        note(tmp_path, RankEnd(rank, end, at_s))
    nodes = RankNodes(hosts=HOSTS)
    outcome = judged(tmp_path, 3, JobExit(0, nodes=nodes))
    assert outcome.rank == 2
    assert (outcome.error or "").startswith("rank 2 (n2), a worker, failed first (SIGKILL)")


@pytest.mark.parametrize("says_where", [False, True])
def test_a_rank_that_was_cut_off_by_open_mpi_is_not_the_one_to_blame(
    tmp_path: Path, says_where: bool
) -> None:
    """The report of the killed rank's own end came too late in 5 of 10 runs on three nodes."""
    for rank in range(3):
        write_rank(tmp_path, rank, finished=False)
    where = "  Local host: n1\n  Local PID:  431\n  Peer host:  n2\n" if says_where else ""
    (tmp_path / LAUNCHER_LOG).write_text(
        f"{where}[n1:00000] *** An error occurred in Socket closed\n"
        "prterun has exited due to process rank 1 with PID 431 on node n1 calling\n"
    )
    note(tmp_path, RankEnd(1, 14, 1.0))
    nodes = RankNodes(hosts=HOSTS)
    outcome = judged(tmp_path, 3, JobExit(14, nodes=nodes))
    error = outcome.error or ""
    if says_where:
        assert outcome.rank == 2
        assert error == "rank 2 (n2) ended without a word, as rank 1 (n1) noticed"
    else:
        assert outcome.rank is None
        assert error == "one of rank 0 (n0), 2 (n2) ended without a word, as rank 1 (n1) noticed"


def test_an_error_on_several_nodes_names_rank_and_host(tmp_path: Path) -> None:
    failure = Failure(rank=1, mendable=False, message="no good", traceback="", hostname="n1")
    write_failure(tmp_path, failure)
    nodes = RankNodes(hosts=HOSTS, lost={"n2": "no answer"})
    verdict = judge(tmp_path, 3, JobExit(1, nodes=nodes))
    assert verdict.outcome.error == "no good (on n1)\n  n2 does not answer: no answer"
    assert said(verdict).startswith("rank 1 (n1) failed: no good\n  n2 does not")


def test_a_launcher_that_outlives_a_failed_rank_does_not_hide_its_error(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, finished=False)
    nodes = RankNodes(hosts=HOSTS)
    error = judged(tmp_path, 2, JobExit(None, nodes=nodes)).error or ""
    assert "unfinished: rank 0 (n0), 1 (n1)" in error


@pytest.mark.parametrize("code", [0, 255])
@pytest.mark.parametrize(
    "said",
    [
        "PRTE has lost communication with a remote daemon.\n\n"
        "  HNP daemon   : [prterun-n0-84@0,0] on node n0\n"
        "  Remote daemon: [prterun-n0-84@0,1] on node n1\n",
        "A daemon failed to report back after being spawned.\n\n"
        "  Local host:    n0\n  Remote host:   n1\n  Daemon exit status: 255\n",
        "[mpiexec@n0] Error: Downstream from host n1 exited abnormally\n"
        "[mpiexec@n0] Trying to close other downstreams\n",
    ],
)
def test_a_daemon_that_died_is_named_with_its_host(tmp_path: Path, said: str, code: int) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, finished=False)
    (tmp_path / LAUNCHER_LOG).write_text(said)
    nodes = RankNodes(hosts={0: "n0", 1: "n1"})
    outcome = judged(tmp_path, 2, JobExit(code, nodes=nodes))
    error = "rank 1 (n1) ended without a word: the launcher lost its daemon on n1"
    assert outcome == Outcome(status="failed", error=error, rank=1)


def test_a_daemon_of_hydra_that_died_is_told_though_no_node_is_named(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, finished=False)
    words = "[mpiexec@n0] control_cb (mpiexec/pmiserv_cb.c:280): assert (!closed) failed\n"
    (tmp_path / LAUNCHER_LOG).write_text(words)
    nodes = RankNodes(hosts={0: "n0", 1: "n1"})
    error = judged(tmp_path, 2, JobExit(255, nodes=nodes)).error or ""
    assert error.startswith("rank 0 (n0), 1 (n1) ended without a word: ")
    assert error.endswith("the launcher lost its daemon on one of these nodes")


def test_a_launcher_that_was_killed_is_named_with_its_host(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, finished=False)
    nodes = RankNodes(hosts={0: "n0", 1: "n1"})
    error = judged(tmp_path, 2, JobExit(-9, nodes=nodes)).error
    host = socket.gethostname()
    assert error == f"the launcher on {host} was killed (SIGKILL), and its ranks with it"


def test_survivors_that_cannot_meet_have_lost_the_run_and_no_program_has_failed(
    tmp_path: Path,
) -> None:
    """Restarts were refused: "the program failed by itself before it made a new step"."""
    message = (
        "WaitTimeoutError: step 0: rank 1 waited 60 s in recovery of group world for the network"
    )
    found_by_rank_1(tmp_path, message)
    note(tmp_path, RankEnd(0, 1, 1.0))
    note(tmp_path, RankEnd(1, 1, 1.0))
    assert isinstance(judge(tmp_path, 2, JobExit(1)).error, JobLostError)
