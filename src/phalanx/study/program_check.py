"""Some steps of a program alone and on ranks, which are then compared: `phalanx check`."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from phalanx.errors import RunFailedError, RunStoppedError, UserError
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.launch_program import Launch, program_words
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.ranks import RankRequest
from phalanx.records.watched import CHECK_SETUP, CheckSetup, WatchedRank, read_watched
from phalanx.report.program_check import (
    ProbableCause,
    Tolerance,
    draws,
    first_difference,
    judge_logs,
    judge_ranks,
    judge_repetition,
)
from phalanx.run import checked_program

SEED, OTHER_SEED = 1, 2
"""Seeds of NumPy, Python and the order of sets."""
WatchedRun = Sequence[WatchedRank]


class NoRunError(UserError):
    """The program has begun no run."""


@dataclass
class CheckResult:
    """Comparison of a program's first steps."""

    ranks: int
    steps: int
    """Number of compared steps."""
    is_double: bool
    findings: list[ProbableCause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class ProgramStarts:
    """Starts of one program, each watched, in a folder that is thrown away."""

    def __init__(
        self, words: Sequence[str], ranks: int, steps: int, folder: Path, live: LiveLine
    ) -> None:
        """words: of `program.py …` or `-m module …`."""
        self._words, self._steps = words, steps
        self._folder, self._live, self._num_starts = folder, live, 0
        self._threads = max(1, usable_cores() // ranks)
        self.is_double = True

    def run(
        self,
        doing: str,
        *,
        ranks: int = 1,
        seed: int = SEED,
        hash_seed: int = SEED,
        micro_batches: int | None = None,
    ) -> WatchedRun:
        """Raises: RunFailedError or UserError where the program fails, or begins no run."""
        self._num_starts += 1
        folder = self._folder / str(self._num_starts)
        folder.mkdir()
        setup = CheckSetup(
            folder=str(folder),
            steps=self._steps,
            seed=seed,
            is_double=self.is_double,
            micro_batches=micro_batches,
        )
        began = time.monotonic()
        with contextlib.suppress(RunStoppedError):  # the setup stops the run
            Launch(
                words=[sys.executable, checked_program.__file__, *self._words],
                ranks=RankRequest(ranks=ranks, threads=self._threads, is_alone=ranks == 1),
                output=io.BytesIO(),
                environment={
                    CHECK_SETUP: msgspec.json.encode(setup).decode(),
                    "PHALANX_CHECK": "1",  # collectives that differ are named
                    "PYTHONHASHSEED": str(hash_seed),
                },
                check=lambda: self._live.draw(f"{time.monotonic() - began:3.0f} s  {doing}"),
            ).run(folder)
        found = read_watched(folder, ranks)
        if found is None:
            raise NoRunError(
                "the program did not start a run by phalanx.start, whose steps phalanx check "
                "compares"
            )
        return found


def check_program(
    words: Sequence[str], *, ranks: int, steps: int, folder: Path, console: Console
) -> CheckResult:
    """Compare a program's first steps alone and on `ranks` ranks.

    folder: for what it would write, thrown away by the caller.
    Raises: RunFailedError or UserError where the program fails alone.
    """
    program_words(words)
    with LiveLine(console, "phalanx check") as live:
        starts = ProgramStarts(words, ranks, steps, folder, live)
        notes: list[str] = []
        alone = _first(starts, notes)
        result = CheckResult(ranks, len(alone[0].steps), starts.is_double, notes=notes)
        _compare(starts, alone, result)
    return result


def _first(starts: ProgramStarts, notes: list[str]) -> WatchedRun:
    """Return a run alone, in float64 where the program can."""
    try:
        return starts.run("alone, in float64")
    except NoRunError:
        raise
    except (RunFailedError, UserError) as error:
        starts.is_double = False
        alone = starts.run("alone, in its own types")
        why = str(error).splitlines()[0]
        notes.append(f"compared in its dtypes, to 3 digits, since it fails in float64: {why}")
        return alone


def _compare(starts: ProgramStarts, alone: WatchedRun, result: CheckResult) -> None:
    """Make the other runs that are needed, and note what they show."""
    tolerance = Tolerance.of(is_double=result.is_double)
    again = starts.run("the same again", seed=OTHER_SEED, hash_seed=OTHER_SEED)
    if first_difference(alone, again, tolerance) is not None:
        seeded = starts.run("with the same random numbers", hash_seed=OTHER_SEED)
        same = first_difference(alone, seeded, tolerance) is None
        once_more = None if same else starts.run("the very same again")
        finding = judge_repetition(alone, again, seeded, once_more, tolerance)
        result.findings += [] if finding is None else [finding]
        return
    try:
        ranks = starts.run(f"on {result.ranks} ranks", ranks=result.ranks)
    except (RunFailedError, UserError) as error:
        text = f"on {result.ranks} ranks the program fails: {str(error).splitlines()[0]}"
        result.findings.append(ProbableCause(cause="failure", text=text))
        return
    start = alone[0].start
    if start.is_sharded:
        result.notes.append("sharded=True: each rank reads separate data, which are not compared")
        return
    finding = judge_ranks(alone, ranks, None, tolerance)
    if finding is not None and not start.has_fixed_cut:
        finding = judge_ranks(alone, ranks, _cut(starts, result.ranks), tolerance)
        if finding is None or draws(alone):
            result.notes.append(
                f"the loop draws random numbers per micro-batch: micro_batches={result.ranks} "
                "makes them the same on any number of ranks"
            )
    if finding is not None:
        result.findings.append(finding)
        return
    if not draws(alone):
        findings, unsteady = judge_logs(alone, again, ranks, tolerance)
        result.findings += findings
        result.notes += [f"run.log({name}=…) differs from run to run" for name in unsteady]


def _cut(starts: ProgramStarts, number: int) -> WatchedRun | None:
    """Return a run alone of as many micro-batches as there are ranks; None where that fails."""
    try:
        return starts.run(f"alone, in {number} micro-batches", micro_batches=number)
    except (RunFailedError, UserError):
        return None
