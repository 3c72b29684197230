"""Records of a program's run: the same files as those of `phalanx train`."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from torch import nn

from phalanx.parallel.step import StepResult
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.processor_time import ProcessorTime
from phalanx.records.schema import EpochEvent, MetricsEvent, SkippedEvent, StartedEvent, StepEvent
from phalanx.run.batch import MicroBatch


class RunRecorder:
    """Counts of a rank and, with a folder, the lines that it writes there."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        """folder: of the run; None: nothing is written."""
        self.folder, self._rank = folder, rank
        self._writer = None if folder is None else EventWriter(rank_file(folder, rank))
        self._origin = self._step_began = time.perf_counter()
        self._loaded_at = self._origin
        self._epoch, self._step = 0, 0
        self._samples, self._loss_sum = 0, 0.0

    def start(
        self, *, threads: int, local_rank: int, num_parameters: int, num_samples: int
    ) -> None:
        """Write the first line of this rank."""
        if self._writer is None:
            return
        self._writer.add(
            StartedEvent(
                at_s=self._at_s(),
                rank=self._rank,
                hostname=socket.gethostname(),
                process_id=os.getpid(),
                local_rank=local_rank,
                threads=threads,
                startup_s=self._at_s(),
                parameters=num_parameters,
                train_samples=num_samples,
                validation_samples=0,
            )
        )

    def begin_epoch(self, epoch: int) -> None:
        """Begin to count an epoch."""
        self._epoch, self._samples, self._loss_sum = epoch, 0, 0.0
        self._epoch_began, self._used = time.perf_counter(), ProcessorTime.now()

    def begin_step(self, began: float) -> None:
        """began: when the step before ended, on `time.perf_counter`; its data were loaded since."""
        self._step_began, self._loaded_at = began, time.perf_counter()

    def end_step(self, batch: MicroBatch, result: StepResult, weight: float) -> None:
        """Record a step. weight: of this rank's samples, by which `result.loss_sum` is a sum."""
        ended = time.perf_counter()
        self._step = batch.step
        self._samples += batch.num_samples
        self._loss_sum += result.loss_sum
        if self._writer is None:
            return
        timed_s = result.forward_s + result.backward_s + result.communication_s
        self._writer.add(
            StepEvent(
                at_s=ended - self._origin,
                epoch=batch.epoch,
                step=batch.step,
                samples=round(weight),
                loss_sum=result.loss_sum,
                data_s=self._loaded_at - self._step_began,
                forward_s=result.forward_s,
                backward_s=result.backward_s,
                communication_s=result.communication_s,
                optimizer_s=max(0.0, ended - self._loaded_at - timed_s),
                hidden_s=result.hidden_s,
                last_bucket_s=result.last_bucket_s,
                is_skipped=result.is_skipped,
            )
        )
        if result.is_skipped:
            self._writer.add(
                SkippedEvent(
                    at_s=ended - self._origin,
                    epoch=batch.epoch,
                    step=batch.step,
                    reason=result.why_skipped,
                )
            )

    def end_epoch(self) -> None:
        """Write the sums of the epoch."""
        if self._writer is None:
            return
        used = ProcessorTime.now().since(self._used)
        self._writer.add(
            EpochEvent(
                at_s=self._at_s(),
                epoch=self._epoch,
                train_s=time.perf_counter() - self._epoch_began,
                samples=self._samples,
                loss_sum=self._loss_sum,
                correct=0,
                communicated_bytes=0,
                user_s=used.user_s,
                system_s=used.system_s,
            )
        )
        self._writer.flush()

    def log(self, metrics: dict[str, float]) -> None:
        """Write a program's own metrics."""
        if self._writer is not None and self._rank == 0:
            self._writer.add(
                MetricsEvent(at_s=self._at_s(), epoch=self._epoch, step=self._step, metrics=metrics)
            )

    def close(self, model: nn.Module) -> None:
        """Write the last line."""
        del model
        if self._writer is not None:
            self._writer.close()

    def _at_s(self) -> float:
        return time.perf_counter() - self._origin
