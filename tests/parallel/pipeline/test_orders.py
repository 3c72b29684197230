"""Schedules as exact tables, laid out as in the papers, and held against torch's own."""

from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from phalanx.errors import UserError
from phalanx.parallel.pipeline.layout import PipelineLayout, layout_of
from phalanx.parallel.pipeline.orders import Action, Kind, forward_order, orders_of
from phalanx.parallel.pipeline.timeline import ScheduledAction, simulate

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


SIGNS: Mapping[Kind, str] = {
    "forward": "F",
    "backward": "B",
    "input gradient": "I",
    "weight gradient": "W",
}


def drawn(layout: PipelineLayout, spans: Sequence[Sequence[ScheduledAction]]) -> str:
    """Draw a line a rank and a column a tick, as in the papers; a rank's second stage has a `'`.

    Actions that take longer than a tick stretch over several columns; a dot is an idle tick.
    """
    end = int(max(rank[-1].ended for rank in spans))
    rows = [["." for _ in range(end)] for _ in spans]
    for rank, of_rank in enumerate(spans):
        stages = layout.stages_of(rank)
        for action, began, ended in of_rank:
            mark = "'" * stages.index(action.stage)
            for tick in range(int(began), int(ended)):
                rows[rank][tick] = f"{SIGNS[action.kind]}{action.micro_batch}{mark}"
    width = max(len(cell) for row in rows for cell in row)
    return "\n".join(" ".join(cell.ljust(width) for cell in row).rstrip() for row in rows)


def table(schedule: str, **numbers: int) -> list[str]:
    layout = layout_of(schedule, **numbers)
    return drawn(layout, simulate(layout)).splitlines()


def rows(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def test_gpipe() -> None:
    """Huang et al., figure 2c; here a backward pass takes two ticks."""
    assert table("gpipe", num_ranks=4, micro_batches=4) == rows("""
        F0 F1 F2 F3 .  .  .  .  .  .  .  .  .  B0 B0 B1 B1 B2 B2 B3 B3
        .  F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 B1 B1 B2 B2 B3 B3 .  .
        .  .  F0 F1 F2 F3 .  .  .  B0 B0 B1 B1 B2 B2 B3 B3 .  .  .  .
        .  .  .  F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3 .  .  .  .  .  .
    """)


def test_1f1b() -> None:
    """Narayanan et al. (Megatron-LM), figure 3."""
    assert table("1f1b", num_ranks=4, micro_batches=6) == rows("""
        F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 F4 B1 B1 F5 B2 B2 .  B3 B3 .  B4 B4 .  B5 B5
        .  F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 .  B4 B4 .  B5 B5 .  .
        .  .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 B4 .  B5 B5 .  .  .  .
        .  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 B5 B5 .  .  .  .  .  .
    """)


def test_interleaved() -> None:
    """The same, figure 4, on two ranks; a `'` is the rank's second stage."""
    assert table("interleaved", num_ranks=2, micro_batches=4) == [
        "F0  F1  F0' F1' F2  .   B0' B0' F3  B1' B1' F2' B0  B0  F3' B1  B1  .   "
        "B2' B2' .   B3' B3' B2  B2  B3  B3",
        ".   F0  F1  F0' B0' B0' F1' B1' B1' F2  B0  B0  F3  B1  B1  F2' B2' B2' "
        "F3' B3' B3' B2  B2  B3  B3  .   .",
    ]


def test_zero_bubble() -> None:
    """Qi et al., figure 2 (ZB-H1): weights fill what 1F1B leaves empty at the end."""
    assert table("zero-bubble", num_ranks=4, micro_batches=8, stages_per_rank=1) == rows("""
        F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7
        .  F0 F1 F2 .  .  I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7
        .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7
        .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7
    """)


def test_zero_bubble_v() -> None:
    """Qi et al., section 6: down the ranks and back up; a rank is idle for one tick."""
    assert table("zero-bubble", num_ranks=2, micro_batches=4) == [
        "F0  F1  F2  F0' I0' W0' F1' I1' W1' F3  I0  W0  F2' I2' W2' I1  W1  F3' "
        "I3' W3' I2  W2  I3  W3  .",
        ".   F0  F0' F1  F1' I0' W0' F2  I0  W0  F2' I1' W1' F3  I1  W1  F3' I2' "
        "W2' I2  I3' I3  W2  W3' W3",
    ]


@st.composite
def layouts(draw: st.DrawFn) -> PipelineLayout:
    numbers = {
        "num_ranks": draw(st.integers(1, 5)),
        "micro_batches": draw(st.integers(1, 14)),
        "stages_per_rank": draw(st.integers(1, 3)),
    }
    schedule = draw(st.sampled_from(SCHEDULES))
    try:
        return layout_of(schedule, **numbers)
    except UserError:
        return layout_of(schedule, num_ranks=numbers["num_ranks"])


@given(layouts())
def test_every_stage_does_everything_once(layout: PipelineLayout) -> None:
    """And nobody waits for ever: `simulate` ends."""
    orders = orders_of(layout)
    simulate(layout)
    for rank, order in enumerate(orders):
        assert len(set(order)) == len(order)
        assert {a.stage for a in order} == set(layout.stages_of(rank))
        for stage in layout.stages_of(rank):
            for micro_batch in range(layout.micro_batches):
                kinds = [a.kind for a in order if a[1:] == (stage, micro_batch)]
                assert kinds in (
                    ["forward", "backward"],
                    ["forward", "input gradient", "weight gradient"],
                )


@given(layouts())
def test_every_stage_has_one_rank(layout: PipelineLayout) -> None:
    held = [stage for rank in range(layout.num_ranks) for stage in layout.stages_of(rank)]
    assert sorted(held) == list(range(layout.num_stages))
    for rank in range(layout.num_ranks):
        assert {layout.rank_of(stage) for stage in layout.stages_of(rank)} == {rank}
        assert list(layout.stages_of(rank)) == sorted(layout.stages_of(rank))


@given(layouts(), st.integers(1, 9))
def test_predicting_never_waits_for_ever(layout: PipelineLayout, num_pieces: int) -> None:
    """Every rank takes in its order what the stage before has made."""
    waiting = [
        list(reversed(list(forward_order(layout, rank, num_pieces))))
        for rank in range(layout.num_ranks)
    ]
    made: set[tuple[int, int]] = set()
    while any(waiting):
        before = len(made)
        for order in waiting:
            while order and (order[-1][0] == 0 or (order[-1][0] - 1, order[-1][1]) in made):
                made.add(order.pop())
        assert len(made) > before
    assert len(made) == layout.num_stages * num_pieces


CASES = [
    layout_of(schedule, num_ranks=ranks, micro_batches=micro_batches, stages_per_rank=stages)
    for schedule, stages, ranks, micro_batches in (
        ("gpipe", 1, 3, 5),
        ("1f1b", 1, 4, 7),
        ("1f1b", 1, 2, 2),
        ("interleaved", 2, 2, 4),
        ("interleaved", 3, 4, 8),
        ("interleaved", 2, 4, 10),  # rounds of five
        ("interleaved", 2, 4, 3),  # fewer micro-batches than ranks
        ("zero-bubble", 1, 4, 8),
        ("zero-bubble", 3, 3, 6),
        ("zero-bubble", 2, 4, 9),
        ("zero-bubble", 2, 4, 3),
    )
]


@pytest.mark.parametrize("layout", CASES, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_torch_runs_the_same(layout: PipelineLayout) -> None:
    expected = [list(of_rank(layout, rank)) for rank in range(layout.num_ranks)]
    assert orders_of(layout) == expected


def of_rank(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    """From torch's own table. In 2.13 that of 1F1B numbers the last rank's forward passes from 1,
    other than the code that runs it; what runs is checked on real ranks."""
    kinds: dict[str, Kind] = {
        "F": "forward",
        "B": "backward",
        "I": "input gradient",
        "W": "weight gradient",
    }
    is_misnumbered = layout.schedule == "1f1b" and rank == layout.num_ranks - 1
    for action in torch_order(layout)[rank]:
        if action is not None and action.microbatch_index is not None:
            kind = kinds[action.computation_type.value]
            too_many = int(is_misnumbered and kind == "forward")
            yield Action(kind, action.stage_index, action.microbatch_index - too_many)


def torch_order(layout: PipelineLayout) -> dict:
    dist.init_process_group("fake", rank=0, world_size=layout.num_ranks, store=FakeStore())
    try:
        stages = [
            PipelineStage(torch.nn.Identity(), stage, layout.num_stages, torch.device("cpu"))
            for stage in layout.stages_of(0)
        ]
        if layout.schedule in ("gpipe", "1f1b"):
            kind = ScheduleGPipe if layout.schedule == "gpipe" else Schedule1F1B
            return kind(stages[0], layout.micro_batches).pipeline_order
        several = {
            ("interleaved", False): ScheduleInterleaved1F1B,
            ("zero-bubble", False): ScheduleInterleavedZeroBubble,
            ("zero-bubble", True): ScheduleZBVZeroBubble,
        }[layout.schedule, layout.is_v]
        return several(stages, layout.micro_batches).pipeline_order
    finally:
        dist.destroy_process_group()
