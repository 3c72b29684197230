"""A prediction as the records of a run that nobody has made, for the readers of real ones. Pure.

Its status is `planned`; ranks that do the same have the same lines. Spans are those of the first
`TRACED_RANKS` ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from phalanx.plan.data_parallel import COMPUTE
from phalanx.plan.events import ActionSpan, length_s
from phalanx.plan.predict import MIDDLE, Predictor
from phalanx.plan.profile import ProgramProfile
from phalanx.records.events import (
    ActionEvent,
    EpochEvent,
    Event,
    NoticeEvent,
    StartedEvent,
    StepEvent,
)
from phalanx.records.files import EventWriter, rank_file, write_record
from phalanx.records.schema import Environment, Outcome, Run, Setting
from phalanx.records.spans import TracedRank, TraceSpan, write_spans

STEPS = 10
TRACED_RANKS = 8


def write_imagined_run(
    folder: Path, profile: ProgramProfile, predictor: Predictor, ranks: int, *, command: str
) -> None:
    """Write `run.json`, `rank-<r>.jsonl` and `spans-<r>.jsonl` into `folder`."""
    spans = predictor.spans(MIDDLE)
    step_s, costs = length_s(spans), predictor.costs()
    lanes = {place: _of_place(spans, place) for place in range(predictor.num_places)}
    write_record(folder, _run(profile, predictor, ranks, folder.name, command))
    for rank in range(ranks):
        own = lanes[predictor.place_of(rank)]
        writer = EventWriter(rank_file(folder, rank))
        started = StartedEvent(
            at_s=0.0,
            rank=rank,
            hostname="planned",
            process_id=0,
            local_rank=rank % predictor.layout.ranks_per_node,
            threads=profile.threads,
            startup_s=profile.startup_s,
            parameters=profile.parameters,
            train_samples=profile.train_samples,
            validation_samples=0,
            coordinates=predictor.coordinates(rank),
            expected=costs,
        )
        for event in (started, *_steps(own, step_s, predictor.samples_of_rank, ranks)):
            writer.note(event)
        writer.close()
        if rank < TRACED_RANKS:
            traced = TracedRank(
                rank=rank, size=ranks, hostname="planned", process_id=0, began_ns=0, readings=[]
            )
            write_spans(
                folder, traced, [_trace(each, n, step_s) for n in range(STEPS) for each in own]
            )


def _of_place(spans: Sequence[ActionSpan], place: int) -> list[ActionSpan]:
    """Return the actions on the lanes of a place of the pipeline; those of the only one."""
    return [span for span in spans if span.action.lane.partition(" ")[2] in ("", str(place))]


def _steps(own: Sequence[ActionSpan], step_s: float, samples: float, ranks: int) -> Iterator[Event]:
    """Yield the steps of a rank, and the epoch that they make up."""
    seconds = {"data": 0.0, "forward": 0.0, "backward": 0.0, "optimizer": 0.0}
    for span in own:
        kind = span.action.name.partition(" ")[0]
        kind = "backward" if kind in ("input", "weight") else kind
        if span.action.lane.startswith(COMPUTE) and kind in seconds:
            seconds[kind] += span.ended_s - span.began_s
    waited_s = max(0.0, step_s - sum(seconds.values()))
    for number in range(STEPS):
        if number == 1:
            yield from (_action(span, number, step_s) for span in own if _is_action(span))
        yield StepEvent(
            at_s=(number + 1) * step_s,
            epoch=1,
            step=number,
            samples=round(samples),
            loss_sum=0.0,
            data_s=seconds["data"],
            forward_s=seconds["forward"],
            backward_s=seconds["backward"],
            communication_s=waited_s,
            optimizer_s=seconds["optimizer"],
        )
    yield EpochEvent(
        at_s=STEPS * step_s,
        epoch=1,
        train_s=STEPS * step_s,
        samples=round(STEPS * samples),
        loss_sum=0.0,
        correct=None,
        communicated_bytes=0,
    )
    yield NoticeEvent(at_s=STEPS * step_s, text=f"planned, not run: {STEPS} steps of {ranks} ranks")


def _is_action(span: ActionSpan) -> bool:
    return span.action.lane != COMPUTE and span.action.name.rpartition(" ")[2].isdigit()


def _action(span: ActionSpan, step: int, step_s: float) -> ActionEvent:
    kind, stage, micro_batch = span.action.name.rsplit(" ", 2)
    return ActionEvent(
        at_s=(step + 1) * step_s,
        step=step,
        stage=int(stage),
        micro_batch=int(micro_batch),
        kind=kind,  # type: ignore[arg-type]
        began_s=step * step_s + span.began_s,
        ended_s=step * step_s + span.ended_s,
    )


def _trace(span: ActionSpan, number: int, step_s: float) -> TraceSpan:
    began, ended = (int((number * step_s + at_s) * 1e9) for at_s in (span.began_s, span.ended_s))
    return TraceSpan(span.action.name, span.action.lane.partition(" ")[0], began, ended)


def _run(profile: ProgramProfile, predictor: Predictor, ranks: int, name: str, command: str) -> Run:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mesh = {} if predictor.mesh is None else predictor.mesh.mesh.axes
    environment = Environment(
        hostname="planned",
        processor=profile.processor,
        cores=profile.cores,
        memory_bytes=None,
        operating_system="",
        python="",
        torch="",
        mpi=None,
        packages={},
        phalanx="",
        commit=profile.commit,
        load_average=None,
    )
    setting = Setting(
        model=profile.model,
        dataset="",
        strategy=predictor.strategy,
        ranks=ranks,
        threads=profile.threads,
        global_batch_size=profile.global_batch,
        epochs=1,
        learning_rate=0.0,
        learning_rate_rule="none",
        optimizer="",
        seed=0,
        dtype=f"float{8 * profile.itemsize}",
        mesh=mesh,
        nodes=predictor.layout.num_nodes,
    )
    return Run(
        command=command,
        config={},
        environment=environment,
        outcome=Outcome(status="planned"),
        started_at=now,
        ended_at=now,
        study="plan",
        run=name,
        setting=setting,
    )
