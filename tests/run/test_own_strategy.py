"""A strategy of a program's own: the example of docs/strategies.md, and what is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import phalanx
from phalanx.gradients.make_reducer import FixedTree
from phalanx.parallel.replicas import Replicas
from phalanx.records.files import read_run
from tests.conftest import Ranks, long

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"
MOST_LINES = 150


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """Folder of the page's programs."""
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["majority_vote.py", "train_by_vote.py"]
    assert sum(body.count("\n") for _, body in blocks) <= MOST_LINES
    for name, body in blocks:
        (tmp_path / name).write_text(body)
    return tmp_path


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [long(1), long(2), 3])
def test_votes_are_those_of_one_process(
    num_ranks: int, example: Path, ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    output = ranks.mpi(num_ranks, programs("own_strategy.py"), str(example))
    assert output.count("voted") == num_ranks


@pytest.mark.mpi
def test_the_example_learns_and_is_recorded(
    example: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(example)
    output = ranks.mpi(3, example / "train_by_vote.py")
    right = re.search(r"(\d+)% right, ranks: 3", output)
    assert right is not None and int(right[1]) > 80
    run = read_run(example / "vote")
    assert run.config["strategy"] == "MajorityVote"
    assert run.config["options"] == {"ties": 0.0}
    assert run.outcome.status == "completed"


def no_strategy(*_: object) -> int:
    return 7


def takes_nothing() -> None: ...


@pytest.mark.parametrize(
    ("strategy", "options", "text"),
    [
        (no_strategy, {}, "strategy=no_strategy returned a int, no phalanx.Strategy: see docs/str"),
        (takes_nothing, {}, "strategy=takes_nothing: .* it is called with the group, the step's"),
        (no_strategy, {"bitwise": True}, "strategy=no_strategy: bitwise=True and --survive fix"),
        (
            no_strategy,
            {"strategy_options": {"rebalance": True}, "bitwise": True},
            "strategy=no_strategy: bitwise=True and --survive fix",
        ),
        (7, {}, "strategy=7 is not one of auto, sequential"),
        (
            Replicas,
            {"strategy_options": {"summation": FixedTree(micro_batches=2)}},
            "strategy=Replicas sums micro-batches in a fixed order, for which the run needs "
            "bitwise=True",
        ),
    ],
)
def test_what_is_no_strategy_is_refused(strategy: Any, options: Any, text: str) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(phalanx.UserError, match=text):
        phalanx.start(
            model,
            SGD(model.parameters(), lr=0.1),
            torch.ones(4, 2),
            batch_size=2,
            strategy=strategy,
            **options,
        )
