"""Epochs of a program that prints a line for each, by a regular expression."""

from __future__ import annotations

import os
import re
import shlex
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.record import begin_record, end_record, opening_fields
from phalanx.records.events import (
    EpochEvent,
    FinishedEvent,
    MetricsEvent,
    NoticeEvent,
    StartedEvent,
)
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.schema import Outcome, Run, Setting


@dataclass(frozen=True, kw_only=True)
class ProgramConfig:
    """One way to run a program."""

    words: tuple[str, ...]
    """The program and its arguments."""
    strategy: str
    ranks: int
    threads: int
    seed: int
    epoch_pattern: str | None
    """Regular expression of the line that it prints after an epoch; None: it writes records."""

    def as_record(self) -> dict[str, object]:
        return asdict(self) | {"words": shlex.join(self.words)}


SHORTEST_S = 2.0
"""Length of an epoch that is timed by lines, which are seen a tenth of a second late."""

NOTICE = (
    "times are measured between lines of the program's output, to 0.1 s; times of steps are unknown"
)


def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """Raises: UserError where it is no regular expression."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(
            f"--epoch-pattern {pattern!r} is not a regular expression: {error}"
        ) from error


class EpochLines:
    """Output of rank 0, in which lines end epochs.

    The named groups `seconds`, `loss` and `samples` of the pattern are taken where it has them;
    else an epoch lasts from one such line to the next.
    """

    def __init__(self, pattern: str | None) -> None:
        self.on_line: Callable[[str], None] = lambda _: None
        """Is told every line."""
        self._pattern = None if pattern is None else compiled_pattern(pattern)
        self._rest, self._has_seconds = b"", False
        self._began_at = self._last_at = time.perf_counter()
        self._epochs: list[tuple[float, float, float | None, int]] = []

    def write(self, new: bytes, /) -> None:
        """Take what the program has written since."""
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace").rstrip())

    def flush(self) -> None:
        pass

    def _take(self, line: str) -> None:
        self.on_line(line)
        found = self._pattern.search(line) if self._pattern else None
        if found is None:
            return
        now, named = time.perf_counter(), found.groupdict()
        self._has_seconds = named.get("seconds") is not None
        seconds = _number(named.get("seconds"))
        self._epochs.append(
            (
                now - self._began_at,
                now - self._last_at if seconds is None else seconds,
                _number(named.get("loss")),
                round(_number(named.get("samples")) or 0),
            )
        )
        self._last_at = now

    def write_records(
        self, folder: Path, *, study: str, strategy: str, config: ProgramConfig, nodes: int
    ) -> None:
        """Write what is known as the records of a run. nodes: on which its ranks were.

        Raises: RunFailedError where the pattern found no line.
        """
        if not self._epochs:
            raise RunFailedError(
                f"--epoch-pattern {config.epoch_pattern!r} finds no line in the output of rank 0: "
                f"{folder / 'rank-0.log'}"
            )
        shortest_s = min(seconds for _, seconds, _, _ in self._epochs)
        if not self._has_seconds and shortest_s < SHORTEST_S:
            raise RunFailedError(
                f"epochs of {shortest_s:.1f} s are too short to be timed by output lines: make "
                f"them {SHORTEST_S:g} s or longer, or print the seconds and name them in "
                "--epoch-pattern: (?P<seconds>[0-9.]+)"
            )
        name = Path(config.words[0]).stem
        setting = Setting(
            model=name,
            dataset="its own",
            strategy=strategy,
            ranks=config.ranks,
            threads=config.threads,
            global_batch_size=0,
            epochs=len(self._epochs),
            learning_rate=0.0,
            learning_rate_rule="none",
            optimizer="its own",
            seed=config.seed,
            dtype="float32",
            nodes=nodes,
        )
        fields = opening_fields(config.words, None)
        run = Run(
            study=study, run=folder.name, config=config.as_record(), setting=setting, **fields
        )
        begin_record(folder, run)
        for rank in range(config.ranks):
            self._write_rank(folder, rank, config)
        end_record(folder, Run, Outcome(status="completed"))

    def _write_rank(self, folder: Path, rank: int, config: ProgramConfig) -> None:
        """Write a rank's file; samples and losses stand with rank 0, whose output they are of."""
        writer = EventWriter(rank_file(folder, rank))
        writer.add(
            StartedEvent(
                at_s=0.0,
                rank=rank,
                hostname=socket.gethostname(),
                process_id=os.getpid(),
                local_rank=rank,
                threads=config.threads,
                startup_s=0.0,
                parameters=0,
                train_samples=0,
                validation_samples=0,
            )
        )
        writer.add(NoticeEvent(at_s=0.0, text=NOTICE))
        for epoch, (at_s, train_s, loss, samples) in enumerate(self._epochs):
            writer.add(
                EpochEvent(
                    at_s=at_s,
                    epoch=epoch,
                    train_s=train_s,
                    samples=samples if rank == 0 else 0,
                    loss_sum=0.0,
                    correct=None,
                    communicated_bytes=0,
                )
            )
            if loss is not None and rank == 0:
                metrics = {"loss": loss}
                writer.add(MetricsEvent(at_s=at_s, epoch=epoch, step=epoch, metrics=metrics))
        finished = self._epochs[-1][0]
        writer.add(FinishedEvent(at_s=finished, parameters_sha256="", peak_memory_bytes=0))
        writer.close()


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None
