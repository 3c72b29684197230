"""Records of a program's run: its folder, its live line, its trace, and how it ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from phalanx.checkpoints.checkpoint import parameters_sha256
from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.incomplete import add_incomplete, report_incomplete
from phalanx.jobs.orphan import JOB_VARIABLE
from phalanx.jobs.record import (
    RUN_DIR,
    begin_record,
    end_record,
    job_command,
    opening_fields,
    unused_folder,
)
from phalanx.jobs.relayed import local_folder
from phalanx.jobs.restarts import is_restart
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy
from phalanx.records.divergence import loss_text, mean_loss
from phalanx.records.environment import process_age_s
from phalanx.records.events import Certificate, NoticeEvent, StartedEvent
from phalanx.records.failures import failure_of
from phalanx.records.files import (
    EventWriter,
    rank_file,
    read_events,
    read_failure,
    report_end,
    why_full,
    write_failure,
)
from phalanx.records.last_collectives import DUMP_DIR, dump_into, last_collectives_file
from phalanx.records.schema import Outcome, Run
from phalanx.records.spans import SpanRecorder, TracedRank, write_spans
from phalanx.run.batch import LoopOptions, Position
from phalanx.run.options import Records, RunDescription
from phalanx.run.recording import GatheredRecords, RunRecorder
from phalanx.run.stop import Stopped, outcome_of

if TYPE_CHECKING:
    from phalanx.jobs.live_line import LiveLine


LIVE_INTERVAL_S = 0.5


class ProgramRecords:
    """Records and live line of one rank of a program's run."""

    recorder: RunRecorder

    def __init__(
        self,
        strategy: Strategy,
        run_dir: Path | str | None,
        described: RunDescription,
        *,
        options: LoopOptions,
        num_samples: int | None,
        asked: Records,
    ) -> None:
        """Make the folder on rank 0, and open this rank's file. Collective.

        run_dir: None: that of `PHALANX_RUN_DIR`, if it is set. Where it is taken, a resumed run
            gets one of its own beside it. described: by the program, or by what it was started
            with. num_samples: of an epoch. asked: for what is recorded.
        Raises: UserError on rank 0 when it holds another run's records or cannot be written.
        """
        self._strategy, self._asked, self._described = strategy, asked, described
        folder = _shared_folder(strategy, run_dir, described, resumes=options.resumes)
        gathered: GatheredRecords | None = None
        if folder is not None:
            if strategy.rank == 0 and self._keeps_run:
                _begin_run(folder, described, strategy)
            strategy.group.barrier()
            gathered = GatheredRecords.begin(strategy.group, folder)
            folder = local_folder(folder) or folder
            if os.environ.get(DUMP_DIR) in (None, os.environ.get(RUN_DIR)):  # a launcher's, or none
                dump_into(folder)
        self.folder = folder
        self._options, self._num_samples = options, num_samples
        self.is_ended = self.has_failed = False
        """True if nothing follows in them, and if the program has failed."""
        self._original_rank = strategy.rank  # others may die
        began_at = time.perf_counter() - process_age_s()
        self._path = None if folder is None else rank_file(folder, strategy.rank)
        needs_end = described.is_begun  # whoever has begun it judges by the last event
        writer = None if self._path is None else EventWriter(self._path, needs_end=needs_end)
        self.recorder = RunRecorder(
            strategy,
            writer,
            began_at=began_at,
            described=described,
            counts_correct=asked.counts_correct,
        )
        self.recorder.gathered = gathered
        self._tracing: Tracing | None = None
        if asked.trace:
            if folder is None:
                raise UserError("trace=True writes into the folder of the records: give run_dir=")
            self._tracing = Tracing(strategy.group, folder, began_at)
        self._line: LiveLine | None = None
        self._shown_at = time.perf_counter()
        if strategy.rank == 0 and sys.stderr.isatty():
            from rich.console import Console  # takes long, and most ranks have no terminal

            from phalanx.jobs.live_line import LiveLine

            self._line = LiveLine(Console(highlight=False, stderr=True)).__enter__()
            atexit.register(self._line.__exit__)

    @property
    def _rank(self) -> int:
        """Number of this rank now: 0 does what one rank does for all."""
        return self._strategy.rank

    def log(self, position: Position, metrics: Mapping[str, float | Tensor]) -> None:
        """Record metrics of the program after the last step, on rank 0.

        Raises: UserError for one that is no number.
        """
        values = {name: _number(name, value) for name, value in metrics.items()}
        if self._rank == 0:
            step = max(0, position.step - 1)
            if self.is_ended and self._path is not None:
                self.recorder.writer = EventWriter(self._path)
            self.recorder.add_metrics(self.epoch_before(position), step, values)
            if self.is_ended and self.recorder.writer is not None:
                self.recorder.writer.close()
            if self._asked.on_metrics is not None:
                self._asked.on_metrics(step, values)

    @staticmethod
    def epoch_before(position: Position) -> int:
        """Return the epoch of the last step: between two epochs the one that has ended."""
        return position.epoch - (position.step > 0 and not position.seen)

    def show(self, position: Position) -> None:
        """Draw the live line, at most twice a second."""
        if self._line is None or (now := time.perf_counter()) < self._shown_at + LIVE_INTERVAL_S:
            return
        from phalanx.jobs.live_line import bar

        self._shown_at = now
        counts, seconds = self.recorder.counts, self.recorder.epoch_s()
        start = self._options.start
        seen = position.seen - (start.seen if position.epoch == start.epoch else 0)
        done = "" if self._num_samples is None else f" {bar(position.seen / self._num_samples)}"
        whole = f"/{self._options.epochs}" if self._options.epochs > 1 else ""
        self._line.draw(
            f"epoch {position.epoch + 1}{whole}{done}"
            f"  loss {loss_text(mean_loss(counts.loss_sum, counts.samples))}"
            f"  {seen / seconds:,.0f} samples/s"
            f"  communication {counts.communication_s / seconds:.1%}"
        )

    def note(self, text: str, *, of_all: bool = False) -> None:
        """Write a notice of rank 0. of_all: each rank has its own."""
        if (of_all or self._rank == 0) and not self.is_ended:
            self.recorder.write(NoticeEvent(at_s=self.recorder.at_s(), text=text))

    def tell(self, text: str) -> None:
        """Write a notice of rank 0, and print it; an empty one is none."""
        if text and self._rank == 0:
            print(text, flush=True)
            self.note(text)

    def finish(
        self,
        strategy: Strategy,
        stopped: Stopped | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        """Write the last lines of a run that came to its end, or was stopped before. Collective.

        certificate: of a bitwise run.
        """
        self._hide()
        if self.folder is None or self.is_ended:
            return
        self.is_ended = True
        if self._tracing is not None:
            self._tracing.compare_clocks()
            self._write_trace(self._tracing)
        if stopped is None:
            self.recorder.finish(parameters_sha256(strategy.model), certificate)
        else:
            self.recorder.stop(stopped.steps)
        if self.recorder.gathered is not None:
            self.recorder.gathered.bring()
        why = "" if self.recorder.writer is None else self.recorder.writer.why_ended
        size = strategy.group.size
        num_ended = int(strategy.group.sum([float(bool(why))])[0])
        if self._rank == 0:
            outcome = outcome_of(stopped, strategy.group.lost)
            self._close(add_incomplete(outcome, num_ended, size, why or "on other nodes"))

    def _write_trace(self, tracing: Tracing) -> None:
        try:
            tracing.write()
        except OSError as error:
            assert self.folder is not None, "which holds the trace"
            report_end(why_full(self.folder, error))

    def _close(self, outcome: Outcome) -> None:
        """Write the outcome; where that is not possible, print it: records end no training."""
        assert self.folder is not None, "of the record"
        report_incomplete(outcome)
        if not self._keeps_run:
            return
        try:
            end_record(self.folder, Run, outcome)
        except RunFailedError as error:
            with contextlib.suppress(OSError):
                print(f"phalanx: {error}", file=sys.stderr, flush=True)

    @property
    def _keeps_run(self) -> bool:
        """Return whether the ranks themselves keep `run.json`."""
        return not self._described.is_begun

    def fail(self, error: BaseException) -> bool:
        """Write how the run ended, and return whether the disk still takes it. Not collective."""
        self.has_failed = True
        if self.is_ended or self.folder is None:
            self._hide()
            return True
        if isinstance(error, KeyboardInterrupt):
            self.close_files()
            if self._rank == 0:
                self.end_kept_run(Outcome(status="interrupted"))
            return True
        failure = failure_of(error, self._original_rank)
        self.dump(failure.message)
        self.close_files()
        try:
            is_first = write_failure(self.folder, failure)
        except OSError:
            return False
        if is_first:
            outcome = Outcome(status="failed", error=failure.message, rank=failure.rank)
            self.end_kept_run(outcome)
        return True

    def end_as_asked(self, request: str) -> None:
        """Close the records of a run that goes on, whose process ends next. Not collective."""
        if not self.is_ended:
            self.dump(f"rank {self._original_rank} was ended: {request}")
            self.expect_end()
            self.close_files()

    def close_files(self) -> None:
        """Write what waits, as far as the disk still takes it; nothing follows. Not collective."""
        self._hide()
        self.is_ended = True
        with contextlib.suppress(Exception):
            if self.recorder.writer is not None:
                self.recorder.writer.close()
        with contextlib.suppress(Exception):
            if self._tracing is not None:
                self._tracing.write()
        with contextlib.suppress(Exception):
            if self.recorder.gathered is not None:
                self.recorder.gathered.tell_where()

    def end_kept_run(self, outcome: Outcome) -> None:
        """Close `run.json`, where the ranks themselves keep it."""
        if self.folder is not None and self._keeps_run:
            with contextlib.suppress(Exception):
                end_record(self.folder, Run, outcome)

    def dump(self, reason: str) -> None:
        """Write down this rank's last collectives; it cannot go on."""
        with contextlib.suppress(Exception):
            for recorder in self._strategy.group.recorders():
                recorder.write(reason)

    def expect_end(self) -> None:
        """Write down what would be lost, should the launcher end this rank soon: that of Open MPI
        gives 0.2 s after its SIGTERM. Not collective."""
        if self.folder is None or self.is_ended:
            return
        is_judged = JOB_VARIABLE in os.environ  # judged by the command that started the ranks
        judges = self._rank == 0 and self._keeps_run and not is_judged
        # First of all, as the launcher soon kills those that end with this rank.
        outcome = known_failure(self.folder, self._strategy.group) if judges else None
        with contextlib.suppress(Exception):
            if self.recorder.writer is not None:
                self.recorder.writer.flush()
            if judges:
                end_record(self.folder, Run, outcome or Outcome(status="interrupted"))

    def leave(self) -> None:
        """Write that the program ended without its run's end."""
        self.fail(KeyboardInterrupt())

    def _hide(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.__exit__()


def _shared_folder(
    strategy: Strategy, run_dir: Path | str | None, described: RunDescription, *, resumes: bool
) -> Path | None:
    """Return the folder of the records as rank 0 names it; None: none are written. Collective."""
    named = os.environ.get(RUN_DIR) if run_dir is None else run_dir
    if named is None:
        return None
    folder = Path(named)
    if described.is_begun:
        return folder
    if run_dir is None or resumes or is_restart():  # one more run of a program, or more of a run
        folder = unused_folder(folder)
    return Path(strategy.group.share(str(folder)))


def _begin_run(folder: Path, described: RunDescription, strategy: Strategy) -> None:
    assert described.setting is not None, "completed by the setup"
    run = Run(
        study=described.kind,
        run=folder.name,
        config=dict(described.config),
        setting=described.setting,
        **opening_fields(job_command(os.environ), strategy.group.library),
    )
    try:
        begin_record(folder, run)
    except UserError as error:
        raise UserError(str(error).replace("--run-dir ", "run_dir=")) from error


def _number(name: str, value: float | Tensor) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"run.log: {name}={value!r} is not a number") from error


def known_failure(folder: Path, group: RunGroup) -> Outcome | None:
    """Return the failure of a rank, if that is why the launcher now ends the others.

    A rank that is ended as this one is leaves its last collectives; one that was killed does not.
    """
    with contextlib.suppress(Exception):
        failure = read_failure(folder)
        if failure is not None:
            return Outcome(status="failed", error=failure.message, rank=failure.rank)
        if not group.recorders():
            return None
        for rank in range(1, group.size):
            file = rank_file(folder, rank)
            first = next(iter(read_events(file)), None) if file.exists() else None
            if isinstance(first, StartedEvent) and _is_killed(first, folder):
                error = f"rank {rank} ended without a word"
                return Outcome(status="failed", error=error, rank=rank)
    return None


def _is_killed(rank: StartedEvent, folder: Path) -> bool:
    """Return whether the process of a rank on this node is gone without having written why."""
    if rank.hostname != socket.gethostname() or last_collectives_file(folder, rank.rank).exists():
        return False
    try:
        os.kill(rank.process_id, 0)
    except ProcessLookupError:
        return True
    return False


class Tracing:
    """Trace of one rank, from the moment at which all ranks are connected."""

    def __init__(self, group: RunGroup, folder: Path, began_at: float) -> None:
        """began_at: seconds of `time.perf_counter()` that the rank's events count from. Collective:
        the clocks of several machines are compared."""
        self._group, self._folder = group, folder
        self._rank, self._size = group.rank, group.size  # numbers before losses
        self._began_ns = int(began_at * 1e9)
        self._spans: SpanRecorder | None = SpanRecorder()
        self._readings = [group.clock()]
        group.trace(self._spans)

    def compare_clocks(self) -> None:
        """Compare the clocks again, at the end: drift is taken as linear. Collective; later spans
        are not part of the trace."""
        self._group.trace(None)
        self._readings.append(self._group.clock())

    def write(self) -> None:
        """Write the rank's file, once."""
        spans, self._spans = self._spans, None
        if spans is None:
            return
        traced = TracedRank(
            rank=self._rank,
            size=self._size,
            hostname=socket.gethostname(),
            process_id=os.getpid(),
            began_ns=self._began_ns,
            readings=self._readings,
            dropped=spans.dropped,
        )
        write_spans(self._folder, traced, spans.take())
