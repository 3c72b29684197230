"""Checkpoints of a program's run: where it begins, and when it saves."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

import msgspec

from phalanx.checkpoints.checkpoint import agreed_manifest, readable_everywhere
from phalanx.checkpoints.find import (
    FoundCheckpoint,
    find_checkpoint,
    find_newest,
    find_to_resume,
    has_checkpoints,
    nothing_left,
)
from phalanx.checkpoints.folder import readable_folders
from phalanx.checkpoints.manifest import Manifest, Value
from phalanx.checkpoints.memory_copies import MemoryCopies, find_copy
from phalanx.checkpoints.program import ProgramState
from phalanx.checkpoints.program_recipe import check_program, is_same_recipe
from phalanx.checkpoints.tensor_file import CheckpointFile
from phalanx.checkpoints.writer import CheckpointWriter
from phalanx.errors import UserError
from phalanx.jobs.memory_copies import OPTION, copy_settings
from phalanx.jobs.restarts import is_restart
from phalanx.parallel.run_group import RunGroup
from phalanx.records.events import NoticeEvent
from phalanx.run.batch import BEGINNING, LoopOptions, Position
from phalanx.run.options import Checkpoints
from phalanx.run.recording import RunRecorder

AUTOMATIC = "auto"
"""Resume from the newest valid checkpoint in the run's folder, or begin anew."""


class ProgramCheckpoints:
    """One rank's part in a program's checkpoints: where they go, the one that the run resumes from,
    and when more are written."""

    def __init__(
        self,
        checkpoint_dir: Path | str | None,
        resume: bool | Path | str | None,
        options: Checkpoints,
        *,
        seed: int,
    ) -> None:
        """Arguments as of `phalanx.start`. seed: of the run. Raises: UserError where they do not
        fit each other."""
        folder = None if checkpoint_dir is None else Path(checkpoint_dir)
        if folder is None and options.given:
            raise UserError(f"checkpoints=Checkpoints({options.given}) needs checkpoint_dir=")
        if folder is None and resume in (True, AUTOMATIC):
            raise UserError(f"resume={resume!r} needs checkpoint_dir=, the folder to resume from")
        is_automatic = resume == AUTOMATIC
        place = folder if resume is True or is_automatic else Path(resume) if resume else None
        if is_restart() and folder is not None and (place is None or readable_folders(folder)):
            place, is_automatic = folder, True
        self.options, self._folder = options, folder
        self._place = place
        """A checkpoint, or a folder of them; None: the run begins anew."""
        self._may_begin = is_automatic
        """True if the run begins anew also where no checkpoint in the folder is valid."""
        self.is_used = folder is not None or place is not None
        """True if the run has anything to do with checkpoints."""
        if self.is_used and not 0 <= seed < 2**63:
            raise UserError(f"seed={seed}: runs with checkpoints need a seed from 0 to 2⁶³ - 1")
        self._writer: CheckpointWriter | None = None
        self.copies: MemoryCopies | None = None
        """Copies in memory, beside those that are written."""
        self._checks_at = 0
        self.resumed: Mapping[str, Value] | None = None
        """The program's own options in the checkpoint that was loaded."""
        self._forgotten: list[str] = []
        self._notice = ""

    def begin(
        self,
        state: ProgramState,
        manifest: Manifest,
        *,
        epochs: int,
        steps: int | None,
        timeout_s: float,
    ) -> LoopOptions:
        """Make the folder this run's, load the checkpoint to resume from into `state`, and return
        where the run begins and ends. Collective.

        manifest: of the run at its first step. epochs, steps: after which it ends. timeout_s: for
        which the ranks wait for each other.
        Raises: UserError when another run writes into the folder, ranks see different checkpoints,
                or the one that was found is damaged or of another model, recipe or optimizer.
        """
        strategy, self.state = state.strategy, state
        writer = None
        if self._folder is not None:
            writer = self._writer = CheckpointWriter(
                folder=self._folder,
                strategy=strategy,
                manifest=manifest,
                shapes=state.whole.shapes,
                also=state.files,
                in_background=self.options.in_thread,
                keep=self.options.keep,
                timeout_s=timeout_s,
            )
            self._notice = writer.begin()
        try:
            strategy.group.barrier()  # every rank sees the same folder from here on
            position, run = self._resume(state, manifest, epochs=epochs, steps=steps)
            if writer is not None:
                writer.manifest = msgspec.structs.replace(manifest, run=run)
                self.copies = MemoryCopies.of(
                    writer.folder, strategy, writer.manifest, writer.shapes, self._files_after
                )
        except BaseException:
            self.close()  # the error may live on, and the lock with it
            raise
        self._checks_at = position.step + 2
        return LoopOptions(
            batch_size=manifest.global_batch_size,
            epochs=epochs,
            steps=steps,
            start=position,
            sums=state.sums() if position.seen else (0.0, 0),
            resumes=self._place is not None,
        )

    def _find_together(self, group: RunGroup) -> tuple[FoundCheckpoint | None, list[str]]:
        """Find the checkpoint on the disk that this rank sees, and return lines for the user.
        Collective; ranks may see different ones, and None where the node has none.

        Raises: UserError, on every rank, as `find_to_resume` on rank 0; on a rank whose own
                checkpoint is damaged.
        """
        found: FoundCheckpoint | None = None
        lines: list[str] = []
        problem = ""
        if group.rank == 0:
            try:
                found, lines = find_to_resume(self._folder, self._place, may_begin=self._may_begin)
            except UserError as error:
                problem = str(error)
        if problem := group.share(problem):
            raise UserError(problem)
        if is_restart() and self._place is None:
            lines = ["restarted without checkpoints: training from the start"]
        if group.rank > 0 and self._place is not None and has_checkpoints(self._place):
            if self._may_begin:
                found, _ = find_newest(self._place)
            else:
                found = find_checkpoint(self._place)
        return found, lines

    def _resume(
        self, state: ProgramState, manifest: Manifest, *, epochs: int, steps: int | None
    ) -> tuple[Position, str]:
        """Load the checkpoint, if there is one; return where the run begins, and its id."""
        strategy, position, is_same = state.strategy, BEGINNING, False
        found, lines = self._find_together(strategy.group)
        copy = None
        if self._folder is not None:
            on_disk = found.manifest.position if found else (-1, 0)
            copy = find_copy(self._folder, strategy.group, on_disk)
            if copy is not None:
                found, text = copy
                lines = [*(line for line in lines if line.startswith("passed over")), text]
        agreed = agreed_manifest(found.path if found else None, strategy.group)
        if agreed is not None:
            changes = self.options.allow_changes
            path = Path(strategy.group.share(str(found.path if found else "")))
            with readable_everywhere(path, agreed, strategy.group) as folder:
                here = FoundCheckpoint(path=folder, manifest=agreed)
                notices = check_program(here, manifest, state.whole.tensors, allow_changes=changes)
                is_same = is_same_recipe(agreed, manifest)
                if copy is None:
                    changed = "" if is_same else ", with changed options"
                    lines += [f"resuming from {path}{changed}"]
                lines += notices
                self._forgotten = state.load(folder, keeps_options=bool(changes))
            self.resumed = agreed.program
            lines += self._forgotten
            position = Position(*agreed.position, state.step)
            if position.epoch >= epochs or (steps is not None and position.step >= steps):
                is_done = position.epoch >= epochs
                done = f"{position.epoch} epochs" if is_done else f"{position.step} steps"
                lines.append(nothing_left(path, done))
        if self._folder is None and copy_settings(os.environ) is not None:
            lines.append(f"{OPTION}: no copies are made, since the program sets no checkpoint_dir=")
        lines += filter(None, [self._notice])
        if strategy.rank == 0 and lines:
            print("\n".join(lines), flush=True)
        strategy.group.barrier()  # no checkpoint is removed that slower ranks still read
        run = agreed.run if agreed is not None and is_same else uuid.uuid4().hex
        return position, strategy.group.share(run)

    def record_in(self, recorder: RunRecorder) -> None:
        """Record what did not fit the run, and each checkpoint from now on."""
        for line in filter(None, [*self._forgotten, self._notice]):
            recorder.write(NoticeEvent(at_s=recorder.at_s(), text=line))
        for each in filter(None, (self._writer, self.copies)):
            each.writer, each.began_at = recorder.writer, recorder.began_at

    @property
    def are_saved(self) -> bool:
        """Return whether the run writes checkpoints."""
        return self._writer is not None

    def save(self, position: Position) -> None:
        """Write a checkpoint of the run where it stands. Collective."""
        writer = self._writer
        if writer is None:
            return
        self.state.step = position.step
        at = (position.epoch, position.seen)
        self.state.strategy.group.together(lambda: writer.save(at))

    def poll(self) -> bool:
        """Return whether a checkpoint is still being written. Raises: UserError when one could not
        be."""
        return self._writer is not None and self._writer.poll()

    def _files_after(self, step: int) -> list[CheckpointFile]:
        """Return the program's files of a copy. step: updates made."""
        self.state.step = step
        return self.state.files()

    def check(self, num_steps: int) -> None:
        """Raise UserError on rank 0, soon after the run began, for what no checkpoint could hold.

        num_steps: that were made.
        """
        is_due = num_steps == self._checks_at and self.state.strategy.group.rank == 0
        if is_due and (self._writer is not None or self.state.strategy.group.num_spares):
            self.state.check()

    def close(self) -> None:
        """Wait for the last checkpoint, and let other runs have the folder.

        Raises: UserError when it could not be written.
        """
        for each in filter(None, (self.copies, self._writer)):
            each.close()
