"""Right predictions are the same however many steps are looked at together."""

import pytest
import torch

from phalanx.run.recording import LARGE, MAX_LOGITS, CorrectCounter, num_correct


def truth(logits: torch.Tensor, targets: torch.Tensor) -> int:
    return sum(
        max(range(len(row)), key=row.__getitem__) == target  # the first of equals
        for row, target in zip(
            logits.flatten(0, -2).tolist(), targets.flatten().tolist(), strict=True
        )
    )


@pytest.mark.parametrize("shape", [(64, 10), (5, 7, 65)])
def test_steps_are_held_and_counted_together(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    hits, expected = CorrectCounter(), 0
    numel = torch.Size(shape).numel()
    for _ in range(2 * MAX_LOGITS // numel // 3 * 2 + 1):
        logits = torch.randn(shape, generator=generator).round()  # with equals
        targets = torch.randint(-1, shape[-1], shape[:-1], generator=generator)
        hits.add(logits, targets)
        expected += truth(logits, targets)
    assert hits.total() == expected
    assert hits.total() == expected, "asking changes nothing"


def test_large_steps_are_counted_at_once() -> None:
    logits = torch.randn(LARGE // 8, 8, generator=torch.Generator().manual_seed(0))
    targets = logits.argmax(-1)
    targets[:3] = -100
    hits = CorrectCounter()
    hits.add(logits, targets)
    assert not hits._logits
    assert hits.total() == len(targets) - 3


def test_rows_beyond_the_targets_do_not_count() -> None:
    """Pieces of a pipeline are of one size: the last one's end is filled up."""
    hits = CorrectCounter()
    hits.add(torch.zeros(5, 3, requires_grad=True), torch.zeros(2, dtype=torch.int64))
    assert hits.total() == 2
    assert num_correct(torch.zeros(2, 3), torch.ones(2, dtype=torch.int64)) == 0
