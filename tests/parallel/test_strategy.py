"""The step that all strategies share, and the shape of their classes."""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import Batch, StepOptions
from tests.parallel.stepping import make_step

ROOM = Path(__file__).parents[2] / "src" / "phalanx" / "parallel"
SGD = OptimizerConfig(name="sgd", learning_rate=0.1)


class Noted(Replicas):
    """Notes the parts of its steps."""

    def __init__(self, options: StepOptions | None = None) -> None:
        super().__init__(RunGroup(), options)
        self.parts: list[str] = []
        for name in (
            "clear_gradients", "backward_and_reduce", "clip_factor", "update", "reject_gradients",
            "exchange",
        ):  # fmt: skip
            setattr(self, name, self._noting(name))

    def _noting(self, name: str):
        part = getattr(self, name)

        def noting(*words: object, **options: object) -> object:
            self.parts.append(name)
            return part(*words, **options)

        return noting


def batch(value: float = 1.0) -> Batch:
    return Batch(torch.full((4, 3), value), torch.tensor([1, 0, 1, 1]), 4, 4, 0)


def test_a_step_is_made_from_top_to_bottom() -> None:
    strategy = Noted(StepOptions(accumulate=2))
    strategy.prepare(nn.Linear(3, 2), SGD)
    result = make_step(strategy, batch())
    assert strategy.parts == [
        "clear_gradients", "backward_and_reduce", "clip_factor", "update", "exchange"
    ]  # fmt: skip
    assert not result.is_skipped
    assert result.communication_s == 0


class Twice(RunGroup):
    """A rank whose peer holds the same."""

    def sum(self, values: Sequence[float]) -> list[float]:
        return [2 * value for value in values]


def test_a_parameter_that_two_ranks_hold_counts_once() -> None:
    strategy = Replicas(RunGroup())
    strategy.group, strategy._held_numbers = Twice(), [1, 0]
    model = nn.Linear(3, 2)
    strategy.prepare(model, SGD)
    model.weight.grad, model.bias.grad = torch.full((2, 3), torch.nan), torch.ones(2)
    assert not strategy.gradients_are_finite()
    assert "first produced them at bias" in strategy.describe_nonfinite(batch(), 0.5)
    model.bias.grad = None
    model.weight.grad = torch.full((2, 3), 2.0)
    assert strategy.gradient_square() == 2 * 24


def test_a_step_that_is_skipped_is_exchanged_and_not_made() -> None:
    strategy = Noted(StepOptions(skips_nonfinite=True))
    strategy.prepare(nn.Linear(3, 2), SGD)
    result = make_step(strategy, batch(torch.nan))
    assert "update" not in strategy.parts
    assert strategy.parts[-1] == "exchange"
    assert "the loss of rank 0 is nan" in result.why_skipped


def bases_of_classes() -> dict[str, list[str]]:
    """Of each class of the room, whose names are unique, the names of its bases."""
    return {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for path in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


def test_strategies_inherit_at_most_twice() -> None:
    bases = bases_of_classes()

    def depth(name: str) -> int:
        return max((1 + depth(base) for base in bases[name] if base in bases), default=0)

    strategies = {name: depth(name) for name, above in bases.items() if "Strategy" in above}
    assert len(strategies) == 7
    assert set(strategies.values()) == {1}
    assert not [name for name in bases if depth(name) > 2]


def test_options_of_a_step_stay_as_they_were_given() -> None:
    strategy = Replicas(RunGroup(), StepOptions(clip_norm=1.0))
    with pytest.raises(AttributeError, match="cannot assign"):
        strategy.options.clip_norm = 2.0  # type: ignore[misc]
