"""A prediction as the records of a run that nobody has made, for the readers of real ones. Pure.

Its status is `planned`; ranks that do the same have the same lines. It has no losses: none was
predicted. Spans are those of the first `TRACED_RANKS` ranks, on the lanes that real ranks trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

from phalanx.plan.data_parallel import COMPUTE, LOSS_BYTES, NETWORK
from phalanx.plan.events import ActionSpan, length_s
from phalanx.plan.predict import MIDDLE, Predictor, Target
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
from phalanx.records.spans import Detail, TracedRank, TraceSpan, write_spans

BUCKET = "bucket "
STEPS = 10
TRACED_RANKS = 8


def write_imagined_run(
    folder: Path, profile: ProgramProfile, target: Target, ranks: int, *, command: str
) -> None:
    """Write `run.json`, `rank-<r>.jsonl` and `spans-<r>.jsonl` into `folder`."""
    predictor = Predictor(profile, target, ranks)
    spans = predictor.spans(MIDDLE)
    step_s, costs = length_s(spans), predictor.costs()
    lanes = {place: _of_place(spans, place) for place in range(predictor.num_places)}
    write_record(folder, _run(profile, target, predictor, ranks, folder.name, command))
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
            targets_per_sample=0,
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
            write_spans(folder, traced, list(_traced(own, step_s, predictor, ranks)))


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
    ended_s = max((s.ended_s for s in own if s.action.name == "backward"), default=0.0)
    sums = [s for s in own if s.action.name.startswith(BUCKET)]
    hidden_s = sum(max(0.0, min(s.ended_s, ended_s) - s.began_s) for s in sums[:-1])
    several = len(sums) > 1
    last_s = sums[-1].ended_s - max(sums[-1].began_s, ended_s) if several else None
    for number in range(STEPS):
        if number == 1:
            yield from (_action(span, number, step_s) for span in own if _is_action(span))
        yield StepEvent(
            at_s=(number + 1) * step_s,
            epoch=0,
            step=number,
            samples=round(samples),
            loss_sum=0.0,
            data_s=seconds["data"],
            forward_s=seconds["forward"],
            backward_s=seconds["backward"],
            communication_s=waited_s,
            optimizer_s=seconds["optimizer"],
            hidden_s=hidden_s if several else None,
            last_bucket_s=last_s,
        )
    yield EpochEvent(
        at_s=STEPS * step_s,
        epoch=0,
        train_s=STEPS * step_s,
        samples=round(STEPS * samples),
        loss_sum=0.0,
        correct=None,
        communicated_bytes=0,
    )
    yield NoticeEvent(at_s=STEPS * step_s, text=f"planned, not run: {STEPS} steps of {ranks} ranks")


def _is_action(span: ActionSpan) -> bool:
    """Return whether it is one of a pipeline: its kind, stage and micro-batch."""
    return span.action.lane.startswith(f"{COMPUTE} ") and span.action.name[-1].isdigit()


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


def _traced(
    own: Sequence[ActionSpan], step_s: float, predictor: Predictor, ranks: int
) -> Iterator[TraceSpan]:
    """Yield what real ranks trace: buckets, the collectives within, and other messages."""
    sizes = [bucket.sum.num_bytes for bucket in predictor.buckets]
    messages = [span for span in own if span.action.lane.startswith(NETWORK)]
    calls = {"gradients": 0, "world": 0}
    for step in range(STEPS):
        for span in messages:
            name, is_bucket = span.action.name, span.action.name.startswith(BUCKET)
            began, ended = (int((step * step_s + s) * 1e9) for s in (span.began_s, span.ended_s))
            size = sizes[int(name.removeprefix(BUCKET))] if is_bucket else LOSS_BYTES
            if is_bucket:
                yield TraceSpan(name, NETWORK, began, ended, {"bytes": size})
            if is_bucket or name == "loss":
                group = "gradients" if is_bucket else "world"
                calls[group] += 1
                detail: Detail = {"group": group, "first": 0, "size": ranks, "number": calls[group]}
                name, detail["bytes"] = f"all_reduce {calls[group]}", size
                yield TraceSpan(name, NETWORK, began, ended, detail)
            else:
                yield TraceSpan(name, NETWORK, began, ended)


def _cores(profile: ProgramProfile, target: Target) -> int:
    """Return the cores of a node, where they are not known as many as its ranks compute on."""
    if target.machine is None:
        return profile.cores
    return target.machine.cores_per_node or target.ranks_per_node * profile.threads


def _run(
    profile: ProgramProfile,
    target: Target,
    predictor: Predictor,
    ranks: int,
    name: str,
    command: str,
) -> Run:
    now, machine = datetime.now(UTC).isoformat(timespec="seconds"), target.machine
    options = [(field, getattr(target.options, field.name)) for field in fields(target.options)]
    mesh = {} if predictor.mesh is None else predictor.mesh.mesh.axes
    environment = Environment(
        hostname="planned",
        processor=profile.processor if machine is None else machine.processor or "unknown",
        cores=_cores(profile, target),
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
        strategy=predictor.strategy if ranks > 1 else "sequential",
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
        options={
            field.name: value
            for field, value in options
            if ranks > 1 and field.name not in ("strategy", "mesh") and value != field.default
        },
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
