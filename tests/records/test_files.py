import errno
import os
import time
from pathlib import Path

import pytest

from phalanx.records.events import EpochEvent, FinishedEvent, StepEvent
from phalanx.records.files import (
    EventTail,
    EventWriter,
    create,
    read_events,
    read_failure,
    read_run,
    write_atomically,
    write_failure,
)
from phalanx.records.schema import Failure
from tests.report.made_study import Job, run_of


def epoch(number: int) -> EpochEvent:
    return EpochEvent(
        at_s=1.5,
        epoch=number,
        train_s=1.0,
        samples=10,
        loss_sum=0.1,
        correct=9,
        communicated_bytes=0,
    )


def test_events_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "rank-0.jsonl")
    events = [epoch(0), FinishedEvent(at_s=2.0, parameters_sha256="ab", peak_memory_bytes=1)]
    for event in events:
        writer.add(event)
    writer.close()
    assert list(read_events(tmp_path / "rank-0.jsonl")) == events


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    writer = EventWriter(path)
    writer.add(epoch(0))
    writer.add(epoch(1))
    writer.close()
    path.write_bytes(path.read_bytes()[:-7])
    assert list(read_events(path)) == [epoch(0)]


def test_damage_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text('{"event":"epoch"}\n')
    with pytest.raises(ValueError, match=r"rank-0\.jsonl line 1 is not a record"):
        list(read_events(path))


def test_a_growing_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    tail = EventTail(path)
    assert list(tail.read_new()) == []
    writer = EventWriter(path)
    writer.add(epoch(0))
    writer.close()
    assert list(tail.read_new()) == [epoch(0)]
    with path.open("ab") as file:
        file.write(b'{"event":"epo')
    assert list(tail.read_new()) == []


def test_events_reach_the_disk_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.records.files.FLUSH_INTERVAL_S", 0.0)
    writer = EventWriter(tmp_path / "rank-0.jsonl")
    writer.add(epoch(0))
    assert list(read_events(tmp_path / "rank-0.jsonl")) == [epoch(0)]
    writer.close()


def test_what_is_noted_is_made_when_it_is_written_and_keeps_its_place(tmp_path: Path) -> None:
    """A record made within the training loop cost many times what it does among others."""
    writer = EventWriter(tmp_path / "rank-0.jsonl")
    made = []

    def late(number: int) -> EpochEvent:
        made.append(number)
        return epoch(number)

    writer.add(epoch(0))
    writer.note((late, 1))
    writer.note(epoch(2))
    assert not made
    writer.flush()
    writer.note((late, 3))
    writer.close()
    assert made == [1, 3]
    assert list(read_events(tmp_path / "rank-0.jsonl")) == [epoch(n) for n in range(4)]


def test_whoever_notes_sees_when_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.records.files.FLUSH_INTERVAL_S", 100.0)
    writer = EventWriter(tmp_path / "rank-0.jsonl")
    first = writer.due_at
    assert 90 < first - time.perf_counter() <= 100
    writer.flush()
    assert writer.due_at > first
    writer.close()


@pytest.fixture(params=[None, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def _links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems with hard links, and without."""

    def refuse(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    if request.param:
        monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("_links")
def test_a_record_that_exists_is_not_created_again(tmp_path: Path) -> None:
    """Without hard links, as on exFAT, no run could begin."""
    first, second = (run_of(Job("mlp", "mpi", seed=seed), "study") for seed in range(2))
    create(tmp_path / "run.json", first)
    with pytest.raises(FileExistsError):
        create(tmp_path / "run.json", second)
    assert read_run(tmp_path) == first
    assert os.listdir(tmp_path) == ["run.json"]


@pytest.mark.usefixtures("_links")
def test_only_the_first_failure_is_kept(tmp_path: Path) -> None:
    def failure(rank: int) -> Failure:
        return Failure(rank=rank, mendable=False, message=f"of {rank}", traceback="")

    assert read_failure(tmp_path) is None
    assert write_failure(tmp_path, failure(2))
    assert not write_failure(tmp_path, failure(0))
    assert read_failure(tmp_path) == failure(2)
    assert os.listdir(tmp_path) == ["error.json"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        read_run(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        read_run(tmp_path / "nowhere")


def test_events_of_an_older_phalanx_do_not_say_what_went_between_nodes(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    step = '{"event":"step","at_s":1.0,"epoch":0,"step":0,"samples":8,"loss_sum":1.0,"data_s":0.0,'
    step += '"forward_s":0.1,"backward_s":0.2,"communication_s":0.3,"optimizer_s":0.1}\n'
    epoch = '{"event":"epoch","at_s":2.0,"epoch":0,"train_s":1.0,"samples":8,"loss_sum":1.0,'
    epoch += '"correct":3,"communicated_bytes":40,"sent_bytes":60,"received_bytes":60}\n'
    path.write_text(step + epoch)
    first, second = read_events(path)
    assert isinstance(first, StepEvent)
    assert isinstance(second, EpochEvent)
    assert (first.node_s, first.network_s) == (None, None)
    assert (second.sent_bytes, second.network_sent_bytes, second.formula_bytes) == (60, None, None)
