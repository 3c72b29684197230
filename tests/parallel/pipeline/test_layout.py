"""What schedules ask of the numbers, and who sends how much."""

import pytest

from phalanx.errors import UserError
from phalanx.parallel.costs import step_traffic
from phalanx.parallel.pipeline.layout import layout_of


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "stages", "text"),
    [
        ("1f1b", 3, None, "a micro-batch for each of its 4 ranks, not 3"),
        ("1f1b", 8, 2, "1 stage per rank, not 2"),
        ("gpipe", 8, 2, "1 stage per rank, not 2"),
        ("interleaved", 8, 1, "2 or more, not 1: with one it is 1f1b"),
        (
            "interleaved",
            9,
            None,
            "in 2 rounds of 4 or more, which must be equal: use 8 or 12",
        ),
        ("zero-bubble", 13, 3, "in 3 rounds of 4 or more, which must be equal: use 12 or 16"),
        ("gpipe", 0, None, "not 4, 1 and 0"),
    ],
)
def test_what_does_not_fit(
    schedule: str, micro_batches: int, stages: int | None, text: str
) -> None:
    with pytest.raises(UserError, match=text):
        layout_of(schedule, num_ranks=4, micro_batches=micro_batches, stages_per_rank=stages)


def test_defaults() -> None:
    for schedule, stages in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 2)):
        layout = layout_of(schedule, num_ranks=3)
        assert (layout.micro_batches, layout.stages_per_rank) == (12, stages)


def test_loop_and_v() -> None:
    loop = layout_of("interleaved", num_ranks=3)
    assert [loop.stages_of(rank) for rank in range(3)] == [(0, 3), (1, 4), (2, 5)]
    assert loop.last_rank == 2
    v = layout_of("zero-bubble", num_ranks=3)
    assert [v.stages_of(rank) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert v.last_rank == 0


def test_traffic() -> None:
    """Ranks in the middle of a line send both ways; the turn of a V is on one rank."""
    line = layout_of("1f1b", num_ranks=3, micro_batches=4)
    sent = [step_traffic(line, rank, [40, 28]) for rank in range(3)]
    assert sent == [40, 68, 28]
    loop = layout_of("interleaved", num_ranks=2, micro_batches=4)
    assert step_traffic(loop, 0, [40, 28, 20]) == 88
    v = layout_of("zero-bubble", num_ranks=2, micro_batches=4)
    assert step_traffic(v, 0, [40, 28, 20]) == 60
    assert step_traffic(v, 1, [40, 28, 20]) == 60
