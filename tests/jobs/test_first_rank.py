"""Events of the first of the ranks that are left, and the ends of the others."""

import io
import os
from collections.abc import Sequence
from pathlib import Path

from phalanx.jobs.first_rank import FirstRankOutput, FirstRankTail
from phalanx.jobs.rank_log import log_file
from phalanx.jobs.rank_notes import RankEnd, note
from phalanx.records.events import Event, NoticeEvent, RecoveredEvent, ReplacedEvent
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.rank_texts import recovered_text, replaced_text


def write(folder: Path, rank: int, *events: str | Sequence[int]) -> None:
    """Add notices, and losses of ranks, to a rank's file."""
    writer = EventWriter(rank_file(folder, rank))
    for event in events:
        if isinstance(event, str):
            writer.add(NoticeEvent(at_s=0.0, text=event))
        else:
            writer.add(RecoveredEvent(at_s=0.0, step=1, lost=list(event), recovery_s=0.1))
    writer.close()


def texts(events: Sequence[Event]) -> list[str]:
    return [
        event.text if isinstance(event, NoticeEvent) else type(event).__name__ for event in events
    ]


def test_a_rank_that_has_only_made_its_file_has_not_begun(tmp_path: Path) -> None:
    """A run with --timeout-s 3 was ended where PyTorch took six seconds to be imported."""
    tail, file = FirstRankTail(tmp_path), rank_file(tmp_path, 0)
    file.touch()
    assert not list(tail.read_new()) and not tail.was_touched()
    write(tmp_path, 0, "begins")
    assert texts(list(tail.read_new())) == ["begins"] and tail.was_touched()
    assert not tail.was_touched()
    os.utime(file, (1.0, 1.0))
    assert not list(tail.read_new()) and tail.was_touched()


def test_each_says_what_it_has_written_as_the_first(tmp_path: Path) -> None:
    tail = FirstRankTail(tmp_path)
    assert not list(tail.read_new())
    write(tmp_path, 0, "zero", [2], "zero without two")
    write(tmp_path, 1, "one", [2], "one still second")
    write(tmp_path, 3, "three", [2])
    assert texts(list(tail.read_new())) == ["zero", "RecoveredEvent", "zero without two"]
    note(tmp_path, RankEnd(2, -9, 1.0))
    assert not list(tail.read_new())
    note(tmp_path, RankEnd(0, -9, 2.0))
    write(tmp_path, 1, [0], "one first")
    assert texts(list(tail.read_new())) == ["RecoveredEvent", "one first"]
    note(tmp_path, RankEnd(1, -9, 3.0))
    write(tmp_path, 3, [0], [1], "three alone")
    found = [each for _ in range(3) for each in texts(list(tail.read_new()))]
    assert found == ["RecoveredEvent", "three alone"]


def test_the_next_rank_is_shown_from_the_loss_on(tmp_path: Path) -> None:
    """The end of a run whose rank 0 had died, and its certificate, was not shown."""
    output = io.BytesIO()
    shown = FirstRankOutput(tmp_path, output)
    loss = recovered_text(
        RecoveredEvent(at_s=0.0, step=1, lost=[0], recovery_s=0.02), left=3
    ).encode()
    replaced = ReplacedEvent(at_s=0.0, step=1, spares=[3], lost=[1], seconds=0.2)

    def say(rank: int, text: bytes) -> bool:
        with log_file(tmp_path, rank).open("ab") as log:
            log.write(text)
        return shown.copy_new()

    assert not shown.copy_new()
    assert say(0, b"begin\n")
    assert not say(1, b"begin\nrank 2 died young\n")
    note(tmp_path, RankEnd(0, -9, 1.0))
    assert say(0, b"last of 0\n"), "which a node may bring late"
    assert not say(1, loss[:20]), "half a line"
    assert say(1, loss[20:] + b"\nstep 5\n")
    assert say(1, b"step 6\n")
    note(tmp_path, RankEnd(1, -9, 2.0))
    note(tmp_path, RankEnd(2, -9, 2.0))
    assert not say(2, b"never the first\n")
    assert say(3, b"begin\n" + replaced_text(replaced, 2).encode() + b"\nend\n")
    lines = output.getvalue().decode().splitlines()
    assert lines == [
        *("begin", "last of 0", "rank 0 died: 3 ranks continued after 20 ms", "step 5", "step 6"),
        *("rank 1 died: rank 3, a spare, took its place: 2 ranks continued after 200 ms", "end"),
    ]
