"""Arguments of `phalanx.start` in the runs that `phalanx plan` measures."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from phalanx.errors import UserError
from phalanx.records.profiled import ProfilePlan
from phalanx.run.options import Checkpoints
from phalanx.run.profiling import begin_profiled

DATA = TensorDataset(torch.zeros(64, 2))


class Started:
    """A run that was started."""

    def epochs(self) -> None:
        """Yield nothing."""


def given(plan: ProfilePlan, data: object = DATA, **arguments: Any) -> dict[str, Any]:
    """Return the arguments with which a program's run is started."""
    found: dict[str, Any] = {}

    def start(*words: object, **named: object) -> Any:
        found.update(zip(("model", "optimizer", "data"), words, strict=False), **named)
        return Started()

    begin_profiled(start, plan, "model", "optimizer", data, **arguments)
    return found


def test_what_writes_or_is_of_ranks_is_left_out() -> None:
    found = given(
        ProfilePlan(steps=12),
        **{"batch_size": 8, "epochs": 3, "strategy": "zero", "run_dir": "mine", "autocast": "bf16"},
        **{"checkpoint_dir": "saved", "checkpoints": Checkpoints(keep=1), "resume": True},
    )
    assert found == {
        **{"model": "model", "optimizer": "optimizer", "data": DATA},
        **{"batch_size": 8, "steps": 12, "autocast": "bf16"},
    }
    assert given(ProfilePlan(steps=12), steps=10)["steps"] == 10
    assert given(ProfilePlan(costs="costs.json"), run_dir="mine", epochs=2) == {
        **{"model": "model", "optimizer": "optimizer", "data": DATA},
        **{"run_dir": "mine", "epochs": 2},
    }


def test_a_program_that_saves_saves_elsewhere(tmp_path: Path) -> None:
    plan = ProfilePlan(steps=12, checkpoints=str(tmp_path))
    often = Checkpoints(every_steps=2, in_thread=False)
    found = given(plan, batch_size=8, checkpoint_dir="saved", checkpoints=often)
    assert found["checkpoint_dir"] == str(tmp_path)
    assert found["checkpoints"] == Checkpoints(every_steps=6, in_thread=False)
    assert "checkpoint_dir" not in given(plan, batch_size=8)


def test_batches_of_another_size() -> None:
    plan = ProfilePlan(steps=12, batch_size=4)
    assert given(plan, batch_size=32, micro_batches=16)["micro_batches"] == 2
    found = given(plan, DataLoader(DATA, batch_size=32, num_workers=1))
    assert (found["data"], found["batch_size"]) == (DATA, 4)
    assert found["loading"]["num_workers"] == 1


@pytest.mark.parametrize(
    ("data", "arguments", "words"),
    [
        (iter([]), {"sharded": True}, "sharded=True: the program makes its batches itself"),
        (
            DataLoader(DATA, batch_sampler=type("Mine", (BatchSampler,), {})(
                SequentialSampler(DATA), 4, drop_last=False
            )),
            {},
            "a DataLoader with batch_sampler=Mine",
        ),
    ],
)  # fmt: skip
def test_batches_that_no_plan_can_change(
    data: object, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        given(ProfilePlan(steps=12), data, **arguments)
