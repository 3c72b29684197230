"""Search over the ways to divide a training among a number of ranks. Pure.

All layouts get a closed form; the best of these are followed action by action, and of the best of
those come ranges. Local SGD and servers are left out: they train other numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import NamedTuple

from phalanx.errors import UserError
from phalanx.parallel.mesh import Mesh
from phalanx.parallel.options import StrategyOptions
from phalanx.plan.predict import MIDDLE, Predictor, Range, Target, draw_unknowns
from phalanx.plan.profile import ProgramProfile
from phalanx.records.plan import PlannedLayout

FOLLOWED, TOO_LARGE, SHOWN = 50, 5, 10
"""Layouts that are followed action by action; those of them that do not fit; those with ranges."""
MICRO_BATCHES = (1, 2, 4, 8)
"""Micro-batches of a pipeline, per rank of it."""
FEWEST_DRAWS = 20


class Candidate(NamedTuple):
    """A layout with its predictor and its seconds so far."""

    options: StrategyOptions
    predictor: Predictor
    step_s: float


def search_layouts(
    profile: ProgramProfile, target: Target, ranks: int
) -> tuple[list[PlannedLayout], dict[str, str]]:
    """Return the layouts of `ranks` ranks, those that fit first, the fastest first; and those that
    cannot be, with the reason."""
    candidates, left_out = [], dict[str, str]()
    for options in candidate_options(ranks, target.ranks_per_node, profile.global_batch):
        try:
            predictor = Predictor(profile, replace(target, options=options), ranks)
        except UserError as error:
            left_out.setdefault(_kind(options), str(error))
            continue
        candidates.append(Candidate(options, predictor, predictor.closed_form_s()))
    most = target.memory_bytes
    candidates.sort(key=lambda each: each.step_s)
    fit = [each for each in candidates if not _lacking(each.predictor, most)]
    others = [each for each in candidates if _lacking(each.predictor, most)]
    followed = [
        each._replace(step_s=each.predictor.step(MIDDLE).step_s)
        for each in (*fit[:FOLLOWED], *others[:TOO_LARGE])
    ]
    followed.sort(key=lambda each: (_lacking(each.predictor, most) > 0, each.step_s))
    draws = draw_unknowns(FEWEST_DRAWS)
    found = []
    for place, (options, predictor, step_s) in enumerate(followed):
        steps = [predictor.step(draw).step_s for draw in draws] if place < SHOWN else [step_s]
        found.append(
            PlannedLayout(
                options=option_words(options),
                ranks=ranks,
                step_s=Range.of(steps).scaled(1.0),
                sent_bytes=predictor.costs().sent_bytes,
                peak_bytes=predictor.memory_bytes(),
                too_large_bytes=_lacking(predictor, most),
            )
        )
    return found, left_out


def candidate_options(
    ranks: int, ranks_per_node: int, global_batch: int
) -> Iterator[StrategyOptions]:
    """Yield all layouts that are tried."""
    for compress in ("none", "fp16"):
        yield StrategyOptions(strategy="mpi", compress=compress)
    yield StrategyOptions(strategy="shared")
    if ranks == 1:
        return
    for stage in (1, 2, 3):
        yield StrategyOptions(strategy="zero", zero_stage=stage)
    for mesh in _meshes(ranks, ranks_per_node):
        if global_batch < mesh.data_size:
            continue
        if mesh.pp == 1:
            yield StrategyOptions(strategy="mesh", mesh=str(mesh))
            continue
        for schedule in ("1f1b", "gpipe", "interleaved", "zero-bubble"):
            for many in MICRO_BATCHES:
                if many * mesh.pp * mesh.data_size <= global_batch:
                    yield StrategyOptions(
                        strategy="mesh",
                        mesh=str(mesh),
                        pipeline_schedule=schedule,
                        micro_batches=many * mesh.pp,
                    )


def _meshes(ranks: int, ranks_per_node: int) -> Iterator[Mesh]:
    """Yield the meshes with more than replicas; layers are split within a node."""
    for pp in _divisors(ranks):
        for tp in _divisors(math.gcd(ranks // pp, ranks_per_node)):
            for shard in _divisors(ranks // pp // tp):
                mesh = Mesh(pp=pp, dp=ranks // pp // tp // shard, shard=shard, tp=tp)
                if mesh.dp < ranks:
                    yield mesh


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _lacking(predictor: Predictor, most: float | None) -> float:
    """Return the bytes that a rank has too few; 0: it fits, or the machine's memory is unknown."""
    return 0.0 if most is None else max(0.0, predictor.memory_bytes() - most)


def _kind(options: StrategyOptions) -> str:
    """Return the options that decide whether a layout is possible, without its numbers."""
    mesh = options.asked_mesh
    if mesh is None:
        return option_words(options)
    axes = [axis for axis in mesh.axes if axis != "dp"]
    schedule = f" --pipeline-schedule {options.pipeline_schedule}" if mesh.pp > 1 else ""
    return f"--mesh with {', '.join(axes)}{schedule}"


def option_words(options: StrategyOptions) -> str:
    """Return the options of `phalanx train` that choose a strategy."""
    words = [] if options.mesh is not None else [f"--strategy {options.strategy}"]
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name != "strategy" and value != field.default:
            words.append(f"--{field.name.replace('_', '-')} {value}")
    return " ".join(words)
