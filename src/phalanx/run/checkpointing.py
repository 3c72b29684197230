"""Checkpoints of a program's run: where it begins, and when it saves."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import nn

from phalanx.checkpoints.checkpoint import model_tensors
from phalanx.checkpoints.find import FoundCheckpoint, check_checkpoint_dir, find_checkpoint
from phalanx.checkpoints.folder import IN_PROGRAM, readable_folders
from phalanx.checkpoints.load import agreed_manifest
from phalanx.checkpoints.manifest import Manifest
from phalanx.checkpoints.program import ProgramState
from phalanx.checkpoints.program_recipe import check_program
from phalanx.checkpoints.writer import CheckpointWriter
from phalanx.errors import UserError
from phalanx.records.schema import NoticeEvent
from phalanx.run.loop import BEGINNING, LoopOptions, Position
from phalanx.run.recording import RunRecorder


@dataclass(frozen=True, kw_only=True)
class ResumeChoice:
    """Where a program's checkpoints are, and the one that it resumes from."""

    folder: Path | None = None
    every_steps: int | None = None
    """Steps of an epoch between two checkpoints within it."""
    found: FoundCheckpoint | None = None
    notices: tuple[str, ...] = ()
    """Lines for the user."""

    @classmethod
    def find(
        cls,
        checkpoint_dir: Path | str | None,
        checkpoint_steps: int | None,
        resume: bool | Path | str | None,
    ) -> ResumeChoice:
        """Find the checkpoint that a program asks for, on the disk that this rank sees.

        Raises: UserError for options that do not fit each other, a folder of another run, or a
                checkpoint that is missing or damaged.
        """
        folder = None if checkpoint_dir is None else Path(checkpoint_dir)
        if folder is None and checkpoint_steps is not None:
            raise UserError(f"checkpoint_steps={checkpoint_steps} needs checkpoint_dir=")
        if folder is None and resume is True:
            raise UserError("resume=True needs checkpoint_dir=, the folder to resume from")
        place = folder if resume is True else Path(resume) if resume else None
        notices: tuple[str, ...] = ()
        if place is not None and place == folder and not readable_folders(place):
            place, notices = None, (f"no checkpoint in {folder} yet: training from the start",)
        found = None if place is None else find_checkpoint(place, IN_PROGRAM)
        if folder is not None:
            check_checkpoint_dir(folder, found, IN_PROGRAM)
        if found is not None:
            notices = (*found.skipped, f"resuming from {found.path}")
        return cls(folder=folder, every_steps=checkpoint_steps, found=found, notices=notices)


class ProgramCheckpoints:
    """One rank's part in a program's checkpoints; collective, but for its making."""

    def __init__(self, options: ResumeChoice, manifest: Manifest, model: nn.Module) -> None:
        """manifest: of the run at its first step.

        Raises: UserError where the checkpoint to resume from is of another model or recipe, and
                for a seed that no manifest holds.
        """
        if (options.folder or options.found) and not 0 <= manifest.seed < 2**63:
            raise UserError(
                f"seed={manifest.seed}: runs with checkpoints take one from 0 to 2⁶³ - 1"
            )
        if options.found is not None:
            check_program(options.found, manifest, model)
        self._options, self._manifest = options, manifest
        self._writer: CheckpointWriter | None = None
        self._checks_at = 0
        self._forgotten: list[str] = []

    def begin(self, state: ProgramState, *, epochs: int, steps: int | None) -> LoopOptions:
        """Load the checkpoint that was found into `state`, make the folder this run's, and return
        where the run begins and when it saves.

        epochs, steps: after which it ends.
        Raises: UserError when ranks see different checkpoints, a file is damaged, optimizers or
                schedulers are others, or another run writes into the folder.
        """
        options, strategy, self.state = self._options, state.strategy, state
        found, lines, position = options.found, list(options.notices), BEGINNING
        agreed = agreed_manifest(found.path if found else None, strategy.group, IN_PROGRAM)
        if found is not None and agreed is not None:
            self._forgotten = state.load(found.path)
            lines += self._forgotten
            position = Position(*agreed.position, state.step)
            if position.epoch >= epochs or (steps is not None and position.step >= steps):
                lines.append(_finished(found.path, position, epochs=epochs, steps=steps))
        run = strategy.group.share(agreed.run if agreed else uuid.uuid4().hex)
        strategy.group.barrier()  # the lock may rename the folder that slower ranks still read
        if options.folder is not None:
            self._writer = CheckpointWriter(
                folder=options.folder,
                strategy=strategy,
                manifest=msgspec.structs.replace(self._manifest, run=run),
                shapes={n: tuple(t.shape) for n, t in model_tensors(strategy.model).items()},
                names=IN_PROGRAM,
                also=state.write,
            )
            self._writer.begin()
        self._checks_at = position.step + 2
        if strategy.rank == 0 and lines:
            print("\n".join(lines), flush=True)
        save = None if self._writer is None else self.save
        return LoopOptions(
            batch_size=self._manifest.global_batch_size,
            epochs=epochs,
            steps=steps,
            start=position,
            checkpoint_steps=options.every_steps,
            save=save,
            save_epoch=save,
        )

    def record_in(self, recorder: RunRecorder) -> None:
        """Record what did not fit the run, and each checkpoint from now on."""
        if recorder.writer is None:
            return
        for line in self._forgotten:
            recorder.writer.add(NoticeEvent(at_s=recorder.at_s(), text=line))
        if self._writer is not None:
            self._writer.writer, self._writer.began_at = recorder.writer, recorder.began_at

    def save(self, position: Position) -> None:
        """Write a checkpoint of the run where it stands."""
        writer = self._writer
        if writer is None:
            return
        self.state.step = position.step
        if position.seen:
            writer.within_epoch(position.epoch, position.seen)
        else:
            writer.after_epoch(position.epoch - 1)

    def check(self, num_steps: int) -> None:
        """Raise UserError on rank 0, soon after the run began, for what no checkpoint could hold.

        num_steps: that were made.
        """
        if num_steps == self._checks_at and self._writer and self._writer.strategy.rank == 0:
            self.state.check()

    def close(self) -> None:
        """Let other runs have the folder."""
        if self._writer is not None:
            self._writer.close()


def _finished(checkpoint: Path, position: Position, *, epochs: int, steps: int | None) -> str:
    asked, done = f"epochs={epochs}", f"{position.epoch} epochs"
    if position.epoch < epochs:
        asked, done = f"steps={steps}", f"{position.step} steps"
    return f"checkpoint {checkpoint} has done {done}, all that {asked} asks for: nothing is left"
