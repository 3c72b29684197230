"""What the records of a job that was lost say of its checkpoints."""

from contextlib import closing
from pathlib import Path

from phalanx.records.events import SavedEvent, StartedEvent
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.progress import newest_saved


def record(folder: Path, rank: int, host: str, saved: Path) -> None:
    with closing(EventWriter(rank_file(folder, rank))) as writer:
        writer.add(
            StartedEvent(
                at_s=0.0,
                rank=rank,
                hostname=host,
                process_id=1,
                local_rank=0,
                threads=1,
                startup_s=0.0,
                parameters=1,
                train_samples=1,
                validation_samples=0,
            )
        )
        writer.add(
            SavedEvent(
                at_s=1.0 + rank, epoch=0, path=str(saved), save_s=0.0, bytes=1, written_s=0.0
            )
        )


def test_a_checkpoint_on_a_silent_host_counts_where_it_is_seen(tmp_path: Path) -> None:
    """A copy in the memory of a node was left for one on the disk of the node that was lost."""
    shared, local = tmp_path / "epoch-0001", Path("/nowhere/epoch-0002")
    shared.mkdir()
    record(tmp_path, 0, "n0.site", shared)
    record(tmp_path, 1, "n1.site", local)
    assert newest_saved(tmp_path) == local
    assert newest_saved(tmp_path, silent=("n0",)) == local
    assert newest_saved(tmp_path, silent=("n1",)) == shared
    assert newest_saved(tmp_path, silent=("n0.site", "n1.site")) == shared
    shared.rmdir()
    assert newest_saved(tmp_path, silent=("n0", "n1")) is None
