"""Where a rank of `phalanx train` writes: its records, from the first line to the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.jobs.record import end_record, this_command
from phalanx.launch.detect import Launched
from phalanx.parallel.mesh import placement_notice
from phalanx.parallel.run_group import RunGroup
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.schema import Run
from phalanx.run.gathered_records import GatheredRecords
from phalanx.run.stop import Stopped, outcome_of
from phalanx.run.trace import Tracing, dump_into
from phalanx.train.config import TrainConfig
from phalanx.train.run import begin_run, folder_of, title
from phalanx.train.strategy_options import MESH_STRATEGIES


@dataclass
class RunOutput:
    """Where this rank writes; the folder is known from the start, or once rank 0 has named it."""

    folder: Path | None
    writer: EventWriter | None = None
    group: RunGroup | None = None
    tracing: Tracing | None = None
    gathered: GatheredRecords | None = None
    keeps_run: bool = False  # the ranks themselves keep `run.json`: no parent does
    on_terminate: Callable[[], None] | None = None  # on the first SIGTERM of a run that listens

    def open(
        self,
        config: TrainConfig,
        launched: Launched | None,
        group: RunGroup,
        lines: Sequence[str],
        began_at: float,
    ) -> EventWriter:
        """Open this rank's records, in a folder that rank 0 makes where no parent has. Collective.

        lines: for the user, before those of the run. began_at: as of `Tracing`.
        """
        if self.keeps_run:
            self.folder = Path(group.share(str(folder_of(config))))
            if group.rank == 0:
                command, mpi = this_command(), group.library
                begin_run(self.folder, config, study="train", command=command, mpi=mpi)
                print("\n".join([*lines, *_first_lines(config, launched)]), flush=True)
            group.barrier()
            self.gathered = GatheredRecords.begin(group, self.folder)
        assert self.folder is not None, "named by the parent or by rank 0"
        self.group = group
        dump_into(self.folder)
        self.writer = EventWriter(rank_file(self.folder, group.rank), needs_end=True)
        if config.trace:
            self.tracing = Tracing(group, self.folder, began_at)
        return self.writer

    def close(self) -> None:
        if self.writer:
            self.writer.close()
        if self.tracing:
            self.tracing.write()

    def end_run(self, stopped: Stopped | None) -> None:
        """Close `run.json`, on rank 0."""
        assert self.group is not None and self.folder is not None, "opened"
        if self.group.rank == 0:
            end_record(self.folder, Run, outcome_of(stopped, self.group.lost))

    def dump(self, reason: str) -> None:
        """Write down this rank's last collectives; it cannot continue."""
        for recorder in self.group.recorders() if self.group else ():
            recorder.write(reason)


def _first_lines(config: TrainConfig, launched: Launched | None) -> list[str]:
    """Return the first lines of a log: the run, and the mesh axes that cross nodes."""
    lines = [title(config)]
    if launched and launched.local_world_size and config.strategy in MESH_STRATEGIES:
        mesh = config.mesh_of(launched.world_size)
        lines += filter(None, [placement_notice(mesh, launched.local_world_size)])
    return lines
