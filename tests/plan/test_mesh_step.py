"""Steps of meshes: pipelines against the formulas of their bubbles, bytes against those of runs."""

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from phalanx.errors import UserError
from phalanx.parallel.costs import mesh_costs, step_traffic
from phalanx.parallel.mesh import Mesh
from phalanx.parallel.options import StrategyOptions
from phalanx.parallel.pipeline.layout import PipelineSchedule
from phalanx.parallel.pipeline.timeline import ideal_bubble
from phalanx.plan import mesh_step
from phalanx.plan.compute import ComputeTime
from phalanx.plan.mesh_step import AxisGroup
from phalanx.plan.predict import MIDDLE, Predictor, Target
from phalanx.plan.profile import CALL_S
from phalanx.plan.search import option_words, search_layouts
from tests.plan.made_profile import layered_profile, machine

HERE = Target(machine=None, ranks_per_node=4)


def predictor(ranks: int, target: Target = HERE, **options: Any) -> Predictor:
    chosen = replace(target, options=StrategyOptions(**options))
    return Predictor(layered_profile(), chosen, ranks)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
def test_a_pipeline_of_equal_stages_idles_as_its_formula_says(
    schedule: PipelineSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages take no time, and each half of the backward pass as long as the forward pass."""
    monkeypatch.setattr(mesh_step, "HANDOVER_S", 0.0)
    monkeypatch.setattr(mesh_step, "SPLIT_S", 0.0)
    monkeypatch.setattr(mesh_step, "MESSAGE_S", 0.0)
    monkeypatch.setattr(mesh_step, "ACTION_S", 0.0)
    profile = msgspec.structs.replace(layered_profile(), memory_bytes_per_s=1e30)
    options = StrategyOptions(strategy="pipeline", pipeline_schedule=schedule, micro_batches=8)
    found = Predictor(profile, replace(HERE, options=options), 4)
    assert found.mesh is not None and found.mesh.pipeline is not None
    step, micro = found._time(MIDDLE, 1024), found._time(MIDDLE, 1024 / 8)
    busy_s = 8 * (micro.forward_s + micro.backward_s) / 4
    told = busy_s / (1 - ideal_bubble(found.mesh.pipeline))
    told += step.data_s + step.other_s + step.optimizer_s / 4
    assert found.step(MIDDLE).step_s == pytest.approx(told, rel=1e-9)


@pytest.mark.parametrize(("slower", "speed"), [(1.0, 1.0), (2.0, 1.0), (2.0, 4.0)])
def test_what_the_engine_takes_goes_by_the_pace_of_calls(slower: float, speed: float) -> None:
    """It was found on another machine: on one of half its pace sharded steps were predicted 15 %
    too short."""
    profile = msgspec.structs.replace(layered_profile(), call_s=slower * CALL_S)
    target = replace(HERE, ranks_per_node=2, speed=speed)
    found = {}
    for stage in (1, 2):
        options = StrategyOptions(strategy="zero", zero_stage=stage)
        mesh = Predictor(profile, replace(target, options=options), 2).mesh
        assert mesh is not None
        found[stage] = mesh
    pace = slower / speed
    actions = found[1]._rank_actions(ComputeTime(0, 0, 0, 0, 0), None, hides=False)
    parameters_s = next(each.seconds for each in actions if each.name == "parameters")
    shared_s = found[1]._half_s(profile.gradient_bytes, "dp", None)
    assert parameters_s - shared_s == pytest.approx(pace * mesh_step.ZERO_ONE_S)
    one_s = mesh_step.UNIT_S + mesh_step.UNIT_PARAMETER_S
    sent_s = found[2]._half_s(500_000, "shard", None) + 2 * 500_000 / 1e10
    assert found[2]._gather_s("blocks.0", None) - sent_s == pytest.approx(pace * one_s)


def test_halves_of_a_backward_pass_take_longer_than_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """8 parameters in 8 stages, 8 micro-batches: a rank has each half of 2 of them 8 times, and
    another rank on its core."""
    monkeypatch.setattr(mesh_step, "ACTION_S", 0.0)
    monkeypatch.setattr(mesh_step, "MESSAGE_S", 0.0)
    whole, halves = (
        predictor(4, strategy="pipeline", pipeline_schedule=name, micro_batches=8).step(MIDDLE)
        for name in ("gpipe", "zero-bubble")
    )
    assert halves.compute_s - whole.compute_s == pytest.approx(2 * 2 * 8 * 2 * mesh_step.SPLIT_S)


@pytest.mark.parametrize(
    ("options", "mesh"),
    [
        ({"strategy": "zero", "zero_stage": 3}, Mesh(shard=4)),
        ({"strategy": "zero", "zero_stage": 2}, Mesh(shard=4)),
        ({"strategy": "tensor"}, Mesh(tp=4)),
        ({"strategy": "mesh", "mesh": "dp=2,tp=2"}, Mesh(dp=2, tp=2)),
        ({"strategy": "mesh", "mesh": "dp=2,shard=2"}, Mesh(dp=2, shard=2)),
    ],
)
def test_bytes_are_those_of_the_runs_formulas(options: dict[str, Any], mesh: Mesh) -> None:
    profile = layered_profile()
    found = predictor(4, **options).costs()
    told = mesh_costs(
        profile.units,
        profile.split,
        mesh,
        mesh.coordinates(0),
        4,
        quantities=2,
        zero_stage=options.get("zero_stage", 3),
        rows=[1024 // mesh.data_size],
    )
    assert found == told
    assert found.sent_bytes and found.state_bytes


def test_a_pipeline_sends_its_activations() -> None:
    found = predictor(2, strategy="pipeline", micro_batches=8)
    assert found.mesh is not None and found.mesh.pipeline is not None
    assert found.costs().sent_bytes == step_traffic(found.mesh.pipeline, 0, [1024 * 256])
    assert found.state_bytes() == 16_000_000 / 2


def test_memory_is_that_of_one_rank_with_the_state_of_many() -> None:
    """1 KB of 8 layers for each sample, 1 GB without; state 16 MB, of which a stage has half."""
    whole = layered_profile()
    times = [
        msgspec.structs.replace(each, peak_bytes=10**9 + 8192 * each.samples)
        for each in whole.times
    ]
    profile = msgspec.structs.replace(whole, times=times)

    def peak(ranks: int, **options: Any) -> float:
        chosen = replace(HERE, options=StrategyOptions(**options))
        return Predictor(profile, chosen, ranks).memory_bytes()

    assert peak(2, strategy="mpi") == pytest.approx(10**9 + 8192 * 512)
    assert peak(2, strategy="zero", zero_stage=3) == pytest.approx(10**9 - 8_000_000 + 8192 * 512)
    gpipe = peak(2, strategy="pipeline", pipeline_schedule="gpipe", micro_batches=8)
    assert gpipe == pytest.approx(10**9 - 8_000_000 + 4096 * 1024), "all micro-batches of a half"
    one = peak(2, strategy="pipeline", pipeline_schedule="1f1b", micro_batches=8)
    assert one == pytest.approx(10**9 - 8_000_000 + 4096 * 2 * 128), "of two at most"


def test_groups_of_an_axis_share_a_node() -> None:
    mesh = Mesh(dp=4, tp=2)
    inner, outer = (AxisGroup.of(mesh, axis, 4) for axis in ("tp", "dp"))
    assert (inner.layout.on_one_node, inner.beside) == (True, 2)
    assert (outer.layout.ranks_per_node, outer.layout.num_nodes, outer.beside) == (2, 2, 2)
    apart = AxisGroup.of(mesh, "dp", 2)
    assert (apart.layout.ranks_per_node, apart.beside) == (1, 2)


@pytest.mark.parametrize(
    ("ranks", "options", "said"),
    [
        (3, {"strategy": "pipeline", "stages_per_rank": 3, "pipeline_schedule": "interleaved",
             "micro_batches": 6}, "9 stages, but the model 8 layers"),
        (4, {"strategy": "mesh", "mesh": "dp=2"}, "use --ranks 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(ranks: int, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        predictor(ranks, **options)


def test_a_search_names_the_best_that_fits_and_what_cannot_be() -> None:
    target = Target(machine=machine(memory_gib_per_rank=0.012), ranks_per_node=2)
    found, left_out = search_layouts(layered_profile(tp=False), target, 4)
    assert left_out["--mesh with tp"] == "Odd has no plan for tensor parallelism"
    lacking = [each.too_large_bytes > 0 for each in found]
    assert lacking == sorted(lacking), "what fits comes first"
    assert not lacking[0] and lacking[-1]
    fit = [each.step_s.median for each in found if not each.too_large_bytes]
    assert fit[0] <= 1.1 * min(fit)
    assert len({each.options for each in found}) == len(found)
    assert found[0].step_s.low <= found[0].step_s.median <= found[0].step_s.high
    assert math.isfinite(found[0].step_s.high)


def test_options_are_words_of_the_command_line() -> None:
    assert option_words(StrategyOptions(strategy="mpi")) == "--strategy mpi"
    options = StrategyOptions(strategy="mesh", mesh="pp=2", micro_batches=4)
    assert option_words(options) == "--mesh pp=2 --micro-batches 4"
