"""A program's optimizers, schedulers and state go through a checkpoint, whatever they are."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, NAdam, Optimizer, RMSprop
from torch.optim import lr_scheduler as schedules

from phalanx.checkpoints.find import FoundCheckpoint, find_checkpoint
from phalanx.checkpoints.manifest import TRAINER, Manifest
from phalanx.checkpoints.program import ProgramState, WholeModel
from phalanx.checkpoints.program_recipe import check_program, program_manifest
from phalanx.checkpoints.writer import CheckpointWriter
from phalanx.errors import UserError
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup


class Sloth(Optimizer):
    """Keeps a count as a number, and a list where asked to."""

    def __init__(self, params: Any, lr: float = 0.1, *, keeps: Callable[[], Any] = lambda: 0.5):
        super().__init__(params, {"lr": lr})
        self._keeps = keeps

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["count"] = state.get("count", 0) + 1
                    state["kept"] = self._keeps()
                    parameter -= group["lr"] / state["count"] * parameter.grad


class Model(nn.Module):
    """With complex and frozen parameters, a buffer, tied weights, and a state of its own."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.norm = nn.BatchNorm1d(width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.last = nn.Linear(width, 3)
        self.tied = self.last
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        outputs = self.last(self.frozen(self.norm(self.first(inputs)).relu()))
        return (outputs * self.phase).abs()

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


Made = tuple[nn.Module, dict[str, Optimizer], list[schedules.LRScheduler]]


def joint(model: nn.Module) -> Made:
    torch.manual_seed(0)
    optimizer = Adam(
        [
            {"params": [*model.first.parameters(), *model.norm.parameters()], "lr": 0.01},
            {"params": [*model.last.parameters(), model.phase], "betas": (0.5, 0.9)},
        ]
    )
    warmup = schedules.LinearLR(optimizer, total_iters=2)
    decay = schedules.MultiStepLR(optimizer, [2, 3])
    return model, {"": optimizer}, [schedules.SequentialLR(optimizer, [warmup, decay], [2])]


def make_single(kind: type[Optimizer], **options: Any) -> Callable[[nn.Module], Made]:
    def make(model: nn.Module) -> Made:
        parameters = [p for p in model.parameters() if p.requires_grad]
        return model, {"": kind(parameters, lr=0.1, **options)}, []

    return make


def plateau(model: nn.Module) -> Made:
    _, optimizers, _ = make_single(SGD, momentum=0.9)(model)
    rule = schedules.ReduceLROnPlateau(optimizers[""], patience=0)
    rule.step(1.0)
    return model, optimizers, [rule]


CASES = {
    "groups": joint,
    "plateau": plateau,
    "nadam": make_single(NAdam),
    "amsgrad": make_single(Adam, amsgrad=True, fused=False),
    "rmsprop": make_single(RMSprop, momentum=0.5),
    "tensor lr": lambda model: (
        model,
        {"": Adam([p for p in model.parameters() if p.requires_grad], lr=torch.tensor(0.1))},
        [],
    ),
    "sloth": make_single(Sloth),
}


def state_of(made: Made) -> ProgramState:
    model, optimizers, schedulers = made
    strategy = Replicas(RunGroup())
    strategy.prepare(model, optimizers[""])
    whole = WholeModel.of(model, optimizers)
    return ProgramState(
        strategy=strategy, optimizers=optimizers, schedulers=schedulers, whole=whole
    )


def train(state: ProgramState, seeds: range) -> None:
    (optimizer,) = state.optimizers.values()
    for seed in seeds:
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        loss = state.model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        for scheduler in state.schedulers:
            if isinstance(scheduler, schedules.ReduceLROnPlateau):
                scheduler.step(loss.item() + seed)
            else:
                scheduler.step()
        state.step += 1


def manifest_of(state: ProgramState, **options: Any) -> Manifest:
    settings = {"data": "tensors", "num_samples": 40, "batch_size": 8, "seed": 0, "options": {}}
    return program_manifest(
        state.model, state.optimizers, state.schedulers, **{**settings, **options}
    )


def save(folder: Path, state: ProgramState, manifest: Manifest | None = None) -> FoundCheckpoint:
    writer = CheckpointWriter(
        folder=folder,
        strategy=state.strategy,
        manifest=manifest or manifest_of(state),
        shapes={},
        also=state.files,
    )
    writer.save((0, state.step * 8))
    return find_checkpoint(folder)


@pytest.mark.parametrize("name", CASES)
def test_going_on_is_the_same_as_not_having_stopped(tmp_path: Path, name: str) -> None:
    torch.manual_seed(3)
    state = state_of(CASES[name](Model()))
    state.values["seen"] = ["a", torch.arange(3)]
    manifest = manifest_of(state)
    train(state, range(4))
    found = save(tmp_path, state, manifest)
    train(state, range(4, 8))

    torch.manual_seed(4)
    resumed = state_of(CASES[name](Model()))
    check_program(found, manifest_of(resumed), resumed.whole.tensors)
    assert resumed.load(found.path) == []
    assert resumed.step == 4
    assert resumed.values["seen"][0] == "a" and resumed.values["seen"][1].tolist() == [0, 1, 2]
    train(resumed, range(4, 8))
    assert_equal(dict(state.model.state_dict()), dict(resumed.model.state_dict()))
    for (key, own), other in zip(
        state.optimizers.items(), resumed.optimizers.values(), strict=True
    ):
        assert_equal(own.state_dict(), other.state_dict(), key)
    for own, other in zip(state.schedulers, resumed.schedulers, strict=True):
        assert_equal(own.state_dict(), other.state_dict())


def assert_equal(first: Any, second: Any, path: str = "") -> None:
    assert type(first) is type(second), path
    if isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype and torch.equal(first, second), path
    elif isinstance(first, Mapping):
        assert first.keys() == second.keys(), path
        for key in first:
            assert_equal(first[key], second[key], f"{path}[{key!r}]")
    elif isinstance(first, list | tuple):
        assert len(first) == len(second), path
        for number, pair in enumerate(zip(first, second, strict=True)):
            assert_equal(*pair, f"{path}[{number}]")
    else:
        assert first == second, path


def test_a_compiled_module_has_the_names_of_the_plain_one(tmp_path: Path) -> None:
    state = state_of(CASES["sloth"](nn.Sequential(torch.compile(nn.Linear(3, 3), backend="eager"))))
    assert "0._orig_mod.weight" in state.model.state_dict()
    found = save(tmp_path, state)
    resumed = state_of(CASES["sloth"](nn.Sequential(nn.Linear(3, 3))))
    check_program(found, manifest_of(resumed), resumed.whole.tensors)
    resumed.load(found.path)
    assert torch.equal(resumed.model[0].weight, state.model[0].weight)
    save(tmp_path / "again", resumed)
    state.load(find_checkpoint(tmp_path / "again").path)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (lambda: [1, 2], r"optimizer\.state of phase, 'kept', is of type list"),
        (lambda: torch.eye(2).to_sparse(), r"phase, 'kept', is a torch\.sparse_coo tensor"),
    ],
)
def test_an_optimizer_that_keeps_other_things_is_refused_by_name(kept: Any, words: str) -> None:
    state = state_of(make_single(Sloth, keeps=kept)(Model()))
    state.check()
    train(state, range(1))
    with pytest.raises(UserError, match=words) as caught:
        state.check()
    assert "\n" not in str(caught.value)


def test_state_for_no_parameter_is_refused() -> None:
    state = state_of(make_single(Sloth)(Model()))
    state.optimizers[""].state["all of them"] = {"norm": 1.0}
    with pytest.raises(UserError, match="state for 'all of them', which is not a parameter"):
        state.check()


def test_state_is_a_dictionary() -> None:
    state = state_of(make_single(Sloth)(Model()))
    state.values = [1]  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"run\.state is a dictionary, not a list"):
        state.check()


# -- of which program ------------------------------------------------------------------------------


def told(found: FoundCheckpoint, state: ProgramState, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        check_program(found, manifest_of(state, **options), state.whole.tensors)
    message = str(caught.value)
    assert message.count("\n") <= 1
    return message


def test_another_model_is_told_by_its_tensors(tmp_path: Path) -> None:
    found = save(tmp_path, state_of(make_single(Sloth)(Model())))
    wider = state_of(make_single(Sloth)(Model(width=5)))
    assert told(found, wider) == (
        f"checkpoint {found.path} has a different model: first.weight is (4, 3) there, (5, 3) "
        "here; first.bias is (4,) there, (5,) here; norm.weight is (4,) there, (5,) here; and 7 "
        "more"
    )
    other = nn.Linear(3, 3).double()
    message = told(found, state_of(make_single(Sloth)(other)))
    assert "has a different model (Model there, Linear here): weight is missing there" in message
    double = state_of(make_single(Sloth)(Model().double()))
    assert "first.weight is (4, 3) F32 there, (4, 3) F64 here" in told(found, double)


def test_another_recipe_is_told_by_name(tmp_path: Path) -> None:
    found = save(tmp_path, state_of(joint(Model())), manifest_of(state_of(joint(Model()))))
    same = state_of(joint(Model()))
    check_program(found, manifest_of(same), same.whole.tensors)
    changes: dict[str, Any] = {"batch_size": 4, "seed": 1, "num_samples": 41}
    message = told(found, same, **changes, options={"micro_batches": 6})
    assert "batch_size 8 there, 4 here; seed 0 there, 1 here" in message
    assert "length of data 40 there, 41 here; micro_batches none there, 6 here\n" in message
    model, optimizers, _ = joint(Model())
    optimizers[""].param_groups[1]["betas"] = (0.9, 0.9)
    changed = schedules.StepLR(optimizers[""], 7)
    message = told(found, state_of((model, optimizers, [changed])))
    assert 'optimizer.param_groups[1] betas {"$tuple": [0.5, 0.9]} there' in message
    assert "scheduler step_size none there, 7 here" in message


def test_other_optimizers_and_schedulers_are_refused(tmp_path: Path) -> None:
    found = save(tmp_path, state_of(joint(Model())))
    with pytest.raises(UserError, match=r"a different optimizer: Adam of 7 parameters \(fi"):
        state_of(make_single(Sloth)(Model())).load(found.path)
    model, optimizers, _ = joint(Model())
    with pytest.raises(UserError, match="a different scheduler: SequentialLR there, none here"):
        state_of((model, optimizers, [])).load(found.path)


def test_a_strategy_that_follows_the_rate_alone_refuses_other_options(tmp_path: Path) -> None:
    state = state_of(make_single(SGD)(nn.Linear(3, 3)))
    (optimizer,) = state.optimizers.values()
    optimizer.param_groups[0]["lr"] = 0.01
    fine = save(tmp_path / "rate", state)
    optimizer.param_groups[0]["momentum"] = 0.3
    changed = save(tmp_path / "momentum", state)
    for found in (fine, changed):
        other = state_of(make_single(SGD)(nn.Linear(3, 3)))
        other.strategy.optimizer = SGD(other.model.parameters(), lr=0.1)
        if found is fine:
            other.load(found.path)
            continue
        with pytest.raises(UserError, match="options of the optimizer changed in that run"):
            other.load(found.path)


def test_a_checkpoint_of_phalanx_train_is_refused(tmp_path: Path) -> None:
    state = state_of(make_single(Sloth)(Model()))
    found = save(tmp_path, state)
    found.manifest.program[TRAINER] = "phalanx train"
    assert "was written by phalanx train, for its model Model" in told(found, state)
