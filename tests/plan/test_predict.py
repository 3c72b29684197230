"""Predictions of data-parallel steps, against times that can be worked out by hand."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from phalanx.comm.link import Link
from phalanx.errors import UserError
from phalanx.plan.changes import what_helps
from phalanx.plan.compute import ComputeTime, compute_time, late_share
from phalanx.plan.counts import parse_counts
from phalanx.plan.data_parallel import (
    PlannedBucket,
    StepPrediction,
    bucket_list,
    loss_sum_of,
    step_spans,
)
from phalanx.plan.events import LaneAction, length_s, run_actions
from phalanx.plan.machine import Network
from phalanx.plan.measured_rows import MeasuredRow
from phalanx.plan.predict import Range, Target, draw_unknowns, plan_ranks, reasons_to_doubt
from phalanx.plan.record import make_plan
from phalanx.plan.show import plan_lines
from phalanx.plan.sums import LinkSpeed, RankLayout, memory_sum_s, plan_sum
from phalanx.records.plan import PlannedRange
from tests.plan.made_profile import machine, profile, steps


def width(step: PlannedRange) -> float:
    return (step.high - step.low) / step.median


def test_actions_wait_for_their_lane_and_their_needs() -> None:
    spans = run_actions(
        [
            LaneAction("a", "compute", 2.0),
            LaneAction("b", "network", 5.0, (0,)),
            LaneAction("c", "compute", 1.0),
            LaneAction("d", "network", 1.0, (2,)),
            LaneAction("e", "compute", 1.0, (1, 3)),
        ]
    )
    assert [(s.began_s, s.ended_s) for s in spans] == [(0, 2), (2, 7), (2, 3), (7, 8), (8, 9)]
    assert length_s(spans) == 9
    assert length_s([]) == 0


def test_a_step_is_a_line_through_the_measured_batches() -> None:
    assert compute_time(profile(), 512, 1, 1).own_s == pytest.approx(1e-3 + 512e-5)
    assert compute_time(profile(), 512, 2, 2).own_s == pytest.approx(1.1 * (1e-3 + 512e-5))
    assert compute_time(profile(), 16, 1, 1).own_s == pytest.approx(1e-3 + 16e-5)
    assert compute_time(profile(), 512, 4, 4, 1.5).own_s == pytest.approx(1.5 * (1e-3 + 512e-5))


def test_the_slowest_of_many_ranks_is_later() -> None:
    """A tenth of the steps takes half as long again: of 2 ranks a step in five, of 64 all."""
    noisy = steps(1, 64, late=0.5)
    assert late_share(noisy, 1) == late_share(noisy, 2) == 0
    assert late_share(noisy, 64) == pytest.approx(0.5)


def test_sums_are_taken_as_measured() -> None:
    sums = profile().sums
    assert memory_sum_s(4_000_000, 2, sums) == pytest.approx(2e-3)
    assert memory_sum_s(8_000_000, 2, sums) == pytest.approx(4e-3)
    assert memory_sum_s(4_000_000, 4, sums) == pytest.approx(2e-3 * 0.75 / 0.5)
    assert memory_sum_s(4_000_000, 1, sums) == 0


@pytest.mark.parametrize(
    ("ranks", "per_node", "num_bytes", "algorithm", "node_bytes"),
    [
        (2, 2, 4_000_000, "shared", 0),
        (2, 1, 4_000_000, "direct", 4_000_000),
        (4, 1, 4_000_000, "direct", 6_000_000),
        (4, 2, 4_000_000, "lanes", 4_000_000),
        (8, 2, 4_000_000, "lanes", 6_000_000),
        (64, 1, 4_000_000, "halving", 2 * 4_000_000 * 63 / 64),
        (4, 1, 4_000, "short", 12_000),
    ],
)
def test_sums_go_by_the_runs_own_choice(
    ranks: int, per_node: int, num_bytes: int, algorithm: str, node_bytes: float
) -> None:
    planned = plan_sum(num_bytes, 4, RankLayout(ranks, per_node), [])
    assert planned.algorithm == algorithm
    assert planned.node_bytes == pytest.approx(node_bytes)


def step_of(
    time: ComputeTime, buckets: Sequence[PlannedBucket], link: LinkSpeed, **more: Any
) -> StepPrediction:
    return StepPrediction.of(step_spans(time, buckets, link, **more), time)


def test_the_backward_pass_hides_sums() -> None:
    """Buckets of a half and two quarters: two begin beside the backward pass of 40 ms."""
    link = Link(bandwidth_bytes_per_s=125e6, latency_s=1e-3)
    time_of_rank = ComputeTime(0.0, 0.02, 0.04, 0.01, 0.0)
    layout = RankLayout(2, 1)
    one = bucket_list(profile(), layout, [], overlap=False, link=link)
    assert len(one) == 1
    speed = LinkSpeed(125e6, 1e-3, 0.0)
    shown = step_of(time_of_rank, one, speed)
    assert shown.exposed_s == pytest.approx(one[0].sum.seconds(speed))
    assert shown.step_s == pytest.approx(0.07 + shown.exposed_s)
    several = bucket_list(profile(), layout, [], overlap=True, link=link)
    assert [bucket.sum.num_bytes for bucket in several] == [2_000_000, 1_000_000, 1_000_000]
    assert [bucket.ready for bucket in several] == [0.75, 1.0, 1.0], "with the gradient after it"
    hidden = step_of(time_of_rank, several, speed)
    seconds = [bucket.sum.seconds(speed) for bucket in several]
    assert hidden.step_s == pytest.approx(0.05 + sum(seconds) + 0.01), "one after the other"
    assert step_of(time_of_rank, several, speed, hides=False).step_s > shown.step_s
    fast = LinkSpeed(1e9, 0.0, 0.0)
    hidden = step_of(time_of_rank, several, fast)
    first_s, *last_s = (bucket.sum.seconds(fast) for bucket in several)
    assert hidden.exposed_s == pytest.approx(sum(last_s))
    slower = step_of(time_of_rank, several, fast, thread_share=0.25)
    assert slower.step_s == pytest.approx(hidden.step_s + 0.25 * first_s)


def test_the_loss_is_summed_after_the_gradients_where_they_do_not_carry_it() -> None:
    assert loss_sum_of(RankLayout(2, 2), None) is None
    over_nodes = loss_sum_of(RankLayout(4, 2), None)
    assert over_nodes is not None
    assert (over_nodes.algorithm, over_nodes.rounds) == ("short", 1)
    speed, time_of_rank = LinkSpeed(1e9, 1e-3, 0.0), ComputeTime(0.0, 0.02, 0.04, 0.01, 0.0)
    told = step_of(time_of_rank, [], speed, loss_sum=over_nodes)
    assert told.exposed_s == pytest.approx(1e-3, rel=0.01)


def test_two_ranks_of_this_machine() -> None:
    (two,) = plan_ranks(profile(), Target(machine=None, ranks_per_node=2), [2])
    told = 1.1 * (1e-3 + 512e-5) + 2e-3
    assert two.parts["step_s"] == pytest.approx(told)
    assert two.step_s.low < told < two.step_s.high
    assert two.step_s.median == pytest.approx(told, rel=0.01)
    assert two.speed_up.median == pytest.approx((1e-3 + 1024e-5) / told, rel=0.05)
    assert two.state_bytes == 16_000_000
    assert two.sent_bytes == 4_000_000
    assert next(iter(two.unsure)) == "run"


def test_ranges_grow_with_what_is_not_known() -> None:
    fast = Network(bandwidth_bytes_per_s=100e9, latency_s=2e-6)
    known, unknown = (
        plan_ranks(profile(), Target(machine=each, ranks_per_node=2, is_same_processor=same), [8])
        for each, same in (
            (machine(contention={1: 1.0, 2: 1.1}, network=fast), True),
            (machine(network=fast), False),
        )
    )
    widths = [width(each[0].step_s) for each in (known, unknown)]
    assert widths[0] < widths[1]
    assert {"bandwidth", "hidden"} <= set(known[0].unsure)
    assert {"processor", "contention"} <= set(unknown[0].unsure)


def test_a_measured_row_narrows_the_range() -> None:
    """One of 4 ranks on 2 nodes, twice as slow as told."""
    target = Target(machine=machine(), ranks_per_node=2, is_same_processor=False)
    before = plan_ranks(profile(), target, [4, 8])
    row = MeasuredRow(4, 2 * before[0].step_s.median)
    after = plan_ranks(profile(), target, [4, 8], [row])
    assert after[0].step_s.median == pytest.approx(row.step_s, rel=0.02)
    assert 1.7 * before[1].step_s.median < after[1].step_s.median < 2.3 * before[1].step_s.median
    for b, a in zip(before, after, strict=True):
        assert width(a.step_s) < width(b.step_s)
    assert width(after[0].step_s) < 0.21, "between runs"
    assert [each.measured_s for each in after] == [row.step_s, None]


def test_a_row_over_the_network_says_nothing_of_one_node() -> None:
    """One of 4 ranks, on 2 nodes, made 2 ranks of a node 27,000 times as fast as one."""
    target = Target(machine=machine(), ranks_per_node=2)
    before = plan_ranks(profile(), target, [2, 4])
    row = MeasuredRow(4, before[1].step_s.median / 100)
    after = plan_ranks(profile(), target, [2, 4], [row])
    assert after[0].step_s == before[0].step_s
    assert after[1].step_s.median == pytest.approx(row.step_s, rel=0.02)


def test_a_better_network_helps_where_sums_are_what_takes_long() -> None:
    target = Target(machine=machine(), ranks_per_node=2)
    made = make_plan(profile(), target, [1, 2, 4, 8, 16, 32, 64], command="phalanx plan")
    gains = {words: each.gain for words, each in made.helps.items()}
    assert 1.2 < gains["twice the bandwidth"] < 2
    assert 1.2 < gains["bf16 sums"] <= gains["twice the bandwidth"]
    assert 1 <= gains.get("half the latency", 1.0) < 1.2
    assert 1.2 < gains["twice the global batch"] <= 2
    assert list(what_helps(profile(), target, [1, 2])) == ["twice the global batch"]


def test_twice_the_bandwidth_pays_to_more_ranks() -> None:
    large = msgspec.structs.replace(profile(), global_batch=2**14)
    target = Target(machine=machine(), ranks_per_node=2)
    made = make_plan(large, target, [1, 2, 4, 8, 16, 32, 64], command="phalanx plan")
    pays_to = made.helps["twice the bandwidth"].pays_to
    assert pays_to is not None and 1 < made.worth[0].ranks < pays_to
    assert "(then worth it to " in "\n".join(plan_lines(made))


def test_a_range_holds_nine_tenths() -> None:
    assert Range.of([float(number) for number in range(101)]) == (50, 5, 95)
    draws = draw_unknowns()
    assert draws == draw_unknowns(), "the same plan every time"
    assert sum(0.9 < draw.run < 1.1 for draw in draws) in range(50, 58)


def test_a_thousand_ranks_take_seconds_at_most() -> None:
    began = time.process_time()
    target = Target(machine=machine(), ranks_per_node=2, is_same_processor=False)
    counts = parse_counts("1..1024")
    made = make_plan(
        profile(late=0.2, parameters=60_000_000), target, counts, command="phalanx plan"
    )
    assert time.process_time() - began < 5
    assert [each.ranks for each in made.rows] == counts
    assert made.rows[-1].nodes == 512
    text = "\n".join(plan_lines(made))
    assert "EXTRAPOLATED: another processor (another processor)" in text
    assert "512 times the ranks that were calibrated" in text
    assert "batches of 1 to 1024 samples a rank, measured 64 to 1024" in text
    assert "most help at 1024 ranks: " in text
    assert "--ranks 4 --hosts a:2,b:2" in text
    assert "more nodes than it has (64); as if it had them" in text


def test_state_that_does_not_fit_is_told() -> None:
    target = Target(machine=machine(memory_gib_per_rank=0.01), ranks_per_node=2)
    text = "\n".join(plan_lines(make_plan(profile(), target, [2], command="phalanx plan")))
    assert "does not fit: 5.26 MB too much for a rank" in text


def test_a_disturbed_calibration_is_told_and_widens_ranges() -> None:
    """The second half of the steps of a rank takes half as long again."""
    quiet = profile()
    rank = [1e-2] * 50 + [1.5e-2] * 50
    times = [msgspec.structs.replace(each, step_s=[rank]) for each in quiet.times[1:2]]
    loud = msgspec.structs.replace(quiet, times=[quiet.times[0], *times, *quiet.times[2:]])
    assert quiet.unsteadiness() == 0
    assert loud.unsteadiness() == pytest.approx(0.2)
    shared = msgspec.structs.replace(quiet, core_share=0.8)
    target = Target(machine=None, ranks_per_node=2)
    widths = []
    for each in (quiet, loud, shared):
        made = make_plan(each, target, [2], command="phalanx plan")
        widths.append(width(made.rows[0].step_s))
        first = plan_lines(made)[0]
        assert first.startswith("calibration disturbed: ") == (each is not quiet)
        assert ("others had the cores for 20 % of the time" in first) == (each is shared)
    assert widths[1] > 1.6 * widths[0], "20 % instead of 10, of what the ranks compute"
    assert widths[2] == pytest.approx(widths[1], rel=0.1)


def test_what_was_calibrated_is_not_doubted() -> None:
    assert reasons_to_doubt(profile(), Target(machine=None, ranks_per_node=2), [1, 2, 16]) == []


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1..8", [1, 2, 4, 8]),
        ("1..6", [1, 2, 4, 6]),
        ("4", [4]),
        ("6,1,2", [1, 2, 6]),
        ("3..3", [3]),
    ],
)
def test_numbers_of_ranks(text: str, counts: list[int]) -> None:
    assert parse_counts(text) == counts


@pytest.mark.parametrize("text", ["0", "0..4", "8..4", "a", "", "1,,2", "-1", "1..", "1..99999999"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"write 1\.\.1024"):
        parse_counts(text)


def test_ranks_that_share_a_core_take_turns() -> None:
    """Of 4 ranks on 2 cores each has half a core: twice the time of as many on cores of their
    own."""
    target = Target(machine=None, ranks_per_node=4)
    shared, own = (
        plan_ranks(msgspec.structs.replace(profile(), cores=cores), target, [4])[0].parts
        for cores in (2, 4)
    )
    assert shared["compute_s"] == pytest.approx(2 * own["compute_s"])


def test_turns_are_not_counted_twice_where_contention_was_measured() -> None:
    """`bench machine` has 2 ranks on a node of one core: they took twice as long for that."""
    times = []
    for contention in ({}, {1: 1.0, 2: 2.0}):
        node = machine(processor="a processor", cores_per_node=1, contention=contention)
        target = Target(machine=node, ranks_per_node=2)
        parts = [plan_ranks(profile(), target, [ranks])[0].parts for ranks in (2, 4)]
        times.append([each["compute_s"] for each in parts])
    assert times[1][0] == pytest.approx(2 * compute_time(profile(), 512, 1, 1).own_s)
    assert times[1] == pytest.approx(times[0], rel=0.2)


def test_a_step_is_no_shorter_than_what_it_takes_to_read() -> None:
    """2 ranks of a node read 512 samples of 2,000 bytes each, at 100 MB a second: 20.5 ms."""
    packed = msgspec.structs.replace(profile(), sample_bytes=2e3)
    steps, helps = [], []
    for storage in (None, 1e10, 1e8):
        node = machine(storage_bytes_per_s=storage, contention={1: 1.0, 2: 1.0})
        target = Target(machine=node, ranks_per_node=2)
        steps.append(plan_ranks(packed, target, [2])[0].parts["compute_s"])
        helps.append("twice the storage" in what_helps(packed, target, [1, 2]))
    assert steps[0] == steps[1]
    assert steps[2] == pytest.approx(2 * 512 * 2e3 / 1e8)
    assert helps == [False, False, True]
