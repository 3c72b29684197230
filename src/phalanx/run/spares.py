"""Spares of a run: where they wait, when they take places, and what they are given then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from phalanx.checkpoints.checkpoint import fill, model_files, model_tensors, stored_name
from phalanx.checkpoints.gathering import receive_tensors, send_tensors
from phalanx.checkpoints.manifest import MODEL_FILE, OPTIMIZER_FILE
from phalanx.checkpoints.program import ProgramState
from phalanx.checkpoints.tensor_file import (
    CheckpointFile,
    Spec,
    TensorFile,
    TextFile,
    in_file_order,
    plain_values,
)
from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.gradients.reducer import SummedLoss
from phalanx.parallel.places import Admission
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.surviving_group import SurvivingGroup
from phalanx.run.batch import Position
from phalanx.run.loop import TrainingLoop
from phalanx.run.stop import Stopped

BUFFERS_FILE = "buffers"
"""Name of the file of a model's buffers that no checkpoint has."""
SUMS = ("summed_loss", "summed_correct", "summed_samples", "trained_samples")
"""Counts of an epoch that are the same on all ranks."""

End = Literal["over", "left", "stopped"]
"""End of a loop: it came to its end, all have left it, or were stopped as asked."""


class SparePlaces:
    """One rank's part in the places of a run, which spares take between two steps.

    Where the loop has ended, all spares come in, with the state at the end: what the program does
    afterwards it does on all ranks.
    """

    def __init__(
        self,
        loop: TrainingLoop,
        strategy: Replicas,
        group: SurvivingGroup,
        program: ProgramState,
    ) -> None:
        """program: what it has beside model and optimizer."""
        self._loop, self._strategy, self._group, self._program = loop, strategy, group, program
        self._is_divided = self._has_ended = False
        self._end: End | None = None
        self._sums: Sequence[float] = (0.0, 0, 0, 0)
        self.known: dict[str, float] = {}
        """Further numbers that all ranks know between two steps."""

    @classmethod
    def of(cls, loop: TrainingLoop, strategy: object, program: ProgramState) -> SparePlaces | None:
        """Return the places of a run that has spares, else None."""
        if not isinstance(strategy, Replicas) or not isinstance(strategy.group, SurvivingGroup):
            return None
        group = strategy.group
        return cls(loop, strategy, group, program) if group.num_spares else None

    def begin_epoch(self) -> bool:
        """Wait, as a spare, until this rank is needed; admit spares, as any other. Return whether
        this rank comes when the epoch has begun. Collective.

        Raises: Stopped where the run has ended so.
        """
        if self._is_divided:
            self.end_step()
            return False
        self._is_divided = True
        members = self._group.divide()
        if not self._group.is_waiting:
            self._regroup(members)
            return False
        self._loop.recorder.begin_faults()
        loop, stop = self._loop, self._loop.stop
        self._note(self._group.take_place(self, lambda: stop is not None and stop.is_asked))
        stopped = Stopped(loop.position.step)
        if self._end == "stopped":
            if stop is not None:
                stop.stop_with_others()
            raise stopped
        if self._end == "left":
            loop.is_dismissed = True
            self.restore_sums()
        return loop.position.seen > 0

    def end_step(self) -> None:
        """Admit as many spares as places are vacant. Collective, between two steps."""
        if not self._has_ended and self._group.has_vacancy:
            self._note(self._group.admit(self, all_spares=False))

    def end(self, end: End) -> None:
        """Admit all spares, once the loop has ended. Collective."""
        if self._is_divided and not self._has_ended:
            self._end = end
            self._note(self._group.admit(self, all_spares=True))

    def restore_sums(self) -> None:
        """Go on with the sums over all ranks that this one was given."""
        for name, value in zip(SUMS, self._sums, strict=True):
            setattr(self._loop.recorder.counts, name, value)
        self._sums = (0.0, 0, 0, 0)

    def _note(self, admission: Admission) -> None:
        """Go on with the ranks that compute now, and record it."""
        self._regroup(admission.members)
        self._has_ended = self._end is not None
        if not self._has_ended:
            self._loop.recorder.add_replaced(self._loop.position.step, admission)
            self._group.report_waits()

    def _regroup(self, members: Sequence[int]) -> None:
        self._strategy.regroup(members)
        self._loop.regroup()

    # -- what a spare is given -----------------------------------------------------------------

    def send(self, group: Group, dest: int) -> None:
        """Send all that a rank knows between two steps."""
        loop, summed = self._loop, self._strategy.summed
        files = self._files()
        head = {
            "position": loop.position,
            "end": self._end,
            "sums": [getattr(loop.recorder.counts, name) for name in SUMS],
            "summed": summed,
            "known": self.known,
            "texts": {file.name: file.text for file in files if isinstance(file, TextFile)},
            "specs": {file.name: file.specs for file in files if isinstance(file, TensorFile)},
        }
        text = np.frombuffer(json.dumps(head).encode(), np.uint8).copy()
        group.send(Buffer.of(np.array([len(text)])), dest=dest).wait()
        group.send(Buffer.of(text), dest=dest).wait()
        for file in files:
            if isinstance(file, TensorFile):
                specs = {name: file.specs[name] for name in in_file_order(file.specs)}
                send_tensors(group, specs, map(plain_values, file.tensors), dest)

    def receive(self, group: Group, source: int) -> None:
        """Replace what this rank has by what `send` gives it."""
        length = np.zeros(1, np.int64)
        group.receive(Buffer.of(length), source=source).wait()
        text = np.zeros(int(length[0]), np.uint8)
        group.receive(Buffer.of(text), source=source).wait()
        head = json.loads(text.tobytes())
        found: dict[str, dict[str, Tensor]] = {}
        for file, rows in head["specs"].items():
            specs = {name: Spec(code, tuple(shape)) for name, (code, shape) in rows.items()}
            specs = {name: specs[name] for name in in_file_order(specs)}
            found[file] = dict(zip(specs, receive_tensors(group, specs, source), strict=True))
        self._fill(found, head["texts"])
        self._end, self._sums = head["end"], head["sums"]
        self.known.update(head["known"])
        self._strategy.summed = None if head["summed"] is None else SummedLoss(*head["summed"])
        self._loop.arrive(Position(*head["position"]))

    def _files(self) -> list[CheckpointFile]:
        strategy, program = self._strategy, self._program
        files = model_files(strategy.model, strategy.optimizer)
        files.append(TensorFile.of(BUFFERS_FILE, self._other_buffers()))
        program.step = self._loop.position.step
        files += program.files()
        return files

    def _fill(self, found: dict[str, dict[str, Tensor]], texts: dict[str, str]) -> None:
        strategy = self._strategy
        fill(strategy.model, strategy.optimizer, found[MODEL_FILE], found[OPTIMIZER_FILE])
        for name, buffer in self._other_buffers().items():
            buffer.copy_(found[BUFFERS_FILE][name])
        self._program.fill(texts, found)

    def _other_buffers(self) -> dict[str, Tensor]:
        model = self._strategy.model
        saved = model_tensors(model)
        named = {stored_name(name): buffer for name, buffer in model.named_buffers()}
        return {name: buffer for name, buffer in named.items() if name not in saved}
