"""Mistakes in a program get one or two lines that say what, which value, and what to do."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer, SparseAdam
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

import phalanx
from phalanx.parallel.optimizer import rule_of
from phalanx.run.program import ProgramRun
from phalanx.run.program_loss import check_mean
from phalanx.run.workers import check_workers
from tests.conftest import Ranks

INPUTS, TARGETS = torch.randn(12, 4), torch.randn(12, 2)
SAMPLES = TensorDataset(INPUTS, TARGETS)
OTHER = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def run_of(model: nn.Module, **options: object) -> ProgramRun:
    given = {"data": (INPUTS, TARGETS), "batch_size": 4, **options}
    return phalanx.start(model, SGD(model.parameters(), lr=0.1), **given)  # type: ignore[arg-type]


def loss_of(run: ProgramRun, batch: object) -> Tensor:
    inputs, targets = batch.data  # type: ignore[attr-defined]
    loss: Tensor = (run.model(inputs) - targets).square().mean()
    return loss


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "batch_size=0 is not a whole number from 1"),
        ({"batch_size": 4.0}, "batch_size=4.0 is not a whole number"),
        ({"epochs": -1}, "epochs=-1 is not a whole number from 1"),
        ({"micro_batches": 2.5}, "micro_batches=2.5 is not a whole number from 1"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0 is not a finite number above 0"),
        ({"clip_norm": "1"}, "clip_norm='1' is not a finite number above 0"),
        ({"timeout_s": "1m"}, "timeout_s='1m' is not a finite number above 0"),
        ({"seed": "7"}, "seed='7' is not a whole number"),
        ({"run_dir": 7}, "run_dir=7 is not a path"),
        ({"resume": 5}, "resume=5 is not a path"),
        ({"scheduler": "cosine"}, "scheduler is of type str"),
        ({"scheduler": StepLR(OTHER, 1)}, "StepLR belongs to a different optimizer"),
        ({"scheduler": ReduceLROnPlateau(OTHER)}, "ReduceLROnPlateau, whose step takes a metric"),
        ({"loading": {"num_workers": 2}}, "is for a Dataset, but data are tensors"),
        ({"loading": {"num_worker": 2}}, "'num_worker' is not an argument of PyTorch's DataLoader"),
        ({"loading": {"shuffle": False}}, "loading: shuffle conflicts with the run"),
        ({"loading": ["x"]}, "is not a dictionary of arguments"),
        ({"sharded": True}, "data is of type tuple: with sharded=True give an iterable"),
        ({"bad_gradients": "skpi"}, "bad_gradients='skpi' is neither stop nor skip"),
        ({"micro_batches": 9}, "micro_batches=9 is out of range: with 1 rank and batch_size=4"),
        ({"strategy": "ring"}, "strategy='ring' is not one of auto, sequential, mpi, shared"),
        ({"strategy": "zero", "strategy_options": {"zero_stage": 4}}, "zero_stage=4 is not one of"),
        ({"strategy": "mesh"}, 'strategy="mesh" and strategy_options={"mesh": "dp=2,tp=2"} need'),
        ({"strategy_options": {"compress": "zip"}}, "compress='zip' is not one of none, fp16"),
        (
            {"strategy": "gloo", "strategy_options": {"compress": "fp16"}},
            'compress="fp16" means nothing .*: it is for',
        ),
        ({"strategy_options": {"local_step": 1}}, "'local_step' is not one of all_reduce, backend"),
        (
            {"strategy": "local", "strategy_options": {"local_steps": 0}},
            "local_steps= must be at least 1, not 0",
        ),
        ({"strategy_options": {"topk_fraction": 0.5}}, 'topk_fraction=0.5 .* compress="topk"'),
        (
            {"strategy": "shared", "clip_norm": 1.0},
            r'clip_norm=1 needs the norm .*, but strategy="shared" updates slices',
        ),
        ({"timeout_s": 0}, "timeout_s=0 is not a finite number above 0"),
        ({"device": "gpu"}, "device='gpu' is not one of cpu, cuda, auto"),
        ({"comm": 7}, "comm is of type int: give a communicator of mpi4py"),
        ({"data": []}, r"data has no samples"),
        ({"data": 7}, "data is of type int: give tensors"),
        ({"data": (INPUTS, TARGETS[:-1])}, "the tensors have different lengths: 12, 11"),
        ({"batch_size": None}, "batch_size is missing"),
        (
            {"data": DataLoader(SAMPLES, 5, shuffle=True)},
            "batch_size=4, but that .* is 5",
        ),
        ({"data": DataLoader(SAMPLES, batch_size=None)}, "a DataLoader with batch_size=None"),
    ],
)
def test_options(options: dict[str, object], text: str) -> None:
    with pytest.raises(phalanx.UserError, match=text):
        run_of(nn.Linear(4, 2), **options)


def test_an_optimizer_of_other_parameters() -> None:
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    data = (INPUTS, TARGETS)
    with pytest.raises(phalanx.UserError, match="holds 2 tensors that are not parameters"):
        phalanx.start(model, SGD(other.parameters(), lr=0.1), data, batch_size=4)
    with pytest.raises(phalanx.UserError, match="does not hold bias: pass it all"):
        phalanx.start(model, SGD([model.weight], lr=0.1), data, batch_size=4)
    model.bias.requires_grad_(False)
    phalanx.start(model, SGD([model.weight], lr=0.1), data, batch_size=4).close()


def test_optimizers_hold_each_parameter_once() -> None:
    model = nn.Linear(4, 2)
    own = SGD(model.parameters(), lr=0.1)
    data = (INPUTS, TARGETS)
    for optimizer, text in [
        ({}, "optimizer is an empty mapping"),
        ({"a": own, "b": SGD([model.bias], lr=0.1)}, "'a' and 'b' both hold bias"),
        ({"a": SGD([model.bias], lr=0.1)}, "does not hold weight"),
        ({"a": "adam"}, "optimizer 'a' is of type str"),
        (SparseAdam(model.parameters()), "optimizer is SparseAdam, for sparse gradients"),
        (
            LBFGS(model.parameters()),
            "optimizer is LBFGS, .* use DistributedDataParallel on backend mpi",
        ),
    ]:
        with pytest.raises(phalanx.UserError, match=text):
            phalanx.start(model, optimizer, data, batch_size=4)  # type: ignore[arg-type]


@pytest.mark.parametrize("within", [False, True])
def test_a_model_that_is_wrapped_for_ranks_is_refused(within: bool) -> None:
    """Its gradients were summed twice, in silence."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(nn.Linear(3, 1))
        model = nn.Sequential(wrapped) if within else wrapped
        which = "0" if within else "model"
        with pytest.raises(phalanx.UserError, match=f"{which} is wrapped in DistributedDataP"):
            run_of(model)
    finally:
        dist.destroy_process_group()


def test_steps_alternate_between_optimizers_by_their_names() -> None:
    model = nn.Linear(4, 2)
    optimizers = {"w": SGD([model.weight], lr=0.1), "b": SGD([model.bias], lr=0.1)}

    def start(alternate: object, **options: Any) -> ProgramRun:
        data = (INPUTS, TARGETS)
        return phalanx.start(model, optimizers, data, batch_size=4, alternate=alternate, **options)

    for alternate, text in [
        ("w", "alternate='w' is not a sequence of names"),
        (["w", "x"], "alternate: 'x' is not one of the optimizers 'w', 'b'"),
        (["w"], "never trains 'b': name each"),
    ]:
        with pytest.raises(phalanx.UserError, match=re.escape(text)):
            start(alternate)
    with pytest.raises(phalanx.UserError, match="exclude each other: leave one out"):
        start(["w", "b"], strategy_options={"compress": "fp16"})
    run = start(["w", "b"])
    for batch in run:
        before = model.weight.clone(), model.bias.clone()
        if batch.step == 1:
            with pytest.raises(phalanx.UserError, match="'w', but step 1 trains 'b': pass the"):
                run.backward(loss_of(run, batch), optimizer="w")
        run.backward(loss_of(run, batch))
        assert model.bias.equal(before[1]) == (batch.optimizer == "w")
        assert model.weight.equal(before[0]) == (batch.optimizer == "b")


def test_a_micro_batch_has_one_loss_for_each_optimizer() -> None:
    model = nn.Linear(4, 2)

    def run_of_two() -> ProgramRun:
        optimizers = {"w": SGD([model.weight], lr=0.1), "b": SGD([model.bias], lr=0.1)}
        return phalanx.start(model, optimizers, (INPUTS, TARGETS), batch_size=4)

    run = run_of_two()
    for number, batch in enumerate(run):
        if number == 0:  # one loss for both
            run.backward(loss_of(run, batch))
            continue
        before = model.weight.clone()
        run.backward(loss_of(run, batch), optimizer="w", weight=1)
        assert torch.equal(model.weight, before), "all step together"
        with pytest.raises(phalanx.UserError, match="without optimizer= it serves all of them"):
            run.backward(loss_of(run, batch), weight=1)
        with pytest.raises(phalanx.UserError, match=r"optimizer='c' is unknown to .*: 'w', 'b'"):
            run.backward(loss_of(run, batch), optimizer="c")
        with pytest.raises(phalanx.UserError, match="weight=2 after weight=1"):
            run.backward(loss_of(run, batch), optimizer="b", weight=2)
        run.backward(loss_of(run, batch), optimizer="b", weight=1)
        assert not torch.equal(model.weight, before)
    run = run_of_two()
    with pytest.raises(phalanx.UserError, match=r"backward\(loss, optimizer='b'\) was not called"):
        for batch in run:
            run.backward(loss_of(run, batch), optimizer="w")
    run = run_of(nn.Linear(4, 2))
    with pytest.raises(phalanx.UserError, match=r"the optimizer of phalanx.start has no name"):
        for batch in run:
            run.backward(loss_of(run, batch), optimizer="w")


def no_scalar(run: ProgramRun, batch: object) -> Tensor:
    return loss_of(run, batch).expand(2)


def no_graph(run: ProgramRun, batch: object) -> Tensor:
    return loss_of(run, batch).detach()


def summed(run: ProgramRun, batch: object) -> Tensor:
    inputs, targets = batch.data  # type: ignore[attr-defined]
    return nn.functional.mse_loss(run.model(inputs), targets, reduction="sum")


def test_a_loss_that_looks_like_a_sum_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    weights = torch.full((4, 1), 1 / 8)
    for loss in (
        lambda errors: errors.sum(),
        lambda errors: errors.mean(),
        lambda errors: (weights * errors).sum(),
        lambda errors: errors.sum() / errors.numel(),
        lambda errors: torch.stack([errors.mean(), errors.max()]).sum(),
    ):
        run = run_of(nn.Linear(4, 2))
        for batch in run:
            inputs, targets = batch.data
            run.backward(loss((run.model(inputs) - targets).square()))
    assert capsys.readouterr().err.count("the loss looks like a sum over 4 samples") == 1


def test_a_sum_with_a_weight_of_its_own_or_of_one_value_is_fine() -> None:
    run = run_of(nn.Linear(4, 2))
    for batch in run:
        run.backward(summed(run, batch), weight=1.0)
    run = run_of(nn.Linear(4, 2))
    for batch in run:
        mean = run.model(batch.inputs).mean(0, keepdim=True)
        run.backward(nn.functional.mse_loss(mean, torch.ones(1, 2), reduction="sum"))


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss", "mse_loss", "huber_loss"])
def test_sums_of_each_loss_function_are_refused(name: str) -> None:
    outputs = torch.randn(4, 2, requires_grad=True)
    targets = torch.randint(2, (4,)) if name in ("cross_entropy", "nll_loss") else TARGETS[:4]
    function = getattr(nn.functional, name)
    with pytest.raises(phalanx.UserError, match="is a sum over 4 samples"):
        check_mean(function(outputs, targets, reduction="sum"), 4, warns=False)
    check_mean(function(outputs, targets), 4, warns=False)


@pytest.mark.parametrize(
    ("returned", "options", "text"),
    [
        (None, {}, "the function returned a NoneType: return a number"),
        (torch.ones(3), {}, r"the function returned a Tensor of shape \(3,\)"),
        ({"a": "x"}, {}, "returned a str as 'a'"),
        (1.0, {"reduction": "max"}, "reduction='max' is neither mean nor sum"),
        (1.0, {"batch_size": 0}, "batch_size=0 is not a whole number from 1"),
    ],
)
def test_evaluations_of_no_number(returned: Any, options: dict[str, Any], text: str) -> None:
    """A reduction of another name was taken for a sum, and batches of no samples for the run's."""
    with run_of(nn.Linear(4, 2)) as run, pytest.raises(phalanx.UserError, match=text):
        run.evaluate(lambda *_: returned, INPUTS, **options)


def test_a_tensor_to_reduce_has_one_value() -> None:
    with run_of(nn.Linear(4, 2)) as run, pytest.raises(phalanx.UserError, match="is not a number"):
        run.reduce(torch.ones(2))


def test_a_parameter_that_is_unfrozen_in_the_loop_is_refused() -> None:
    """No rank summed its gradient: parameters drifted apart, and nobody was told."""
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))
    run = run_of(model)
    with pytest.raises(phalanx.UserError, match=r"0.weight was frozen when phalanx.start"):
        for batch in run:
            model.requires_grad_(True)
            run.backward(loss_of(run, batch))


def test_parameters_that_an_optimizer_gets_in_the_loop_are_refused() -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    run = phalanx.start(model, optimizer, SAMPLES, batch_size=4)
    with pytest.raises(phalanx.UserError, match=r"got parameters after phalanx.start"):
        for batch in run:
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
            run.backward(loss_of(run, batch))


@pytest.mark.parametrize("weight", ["a", -1, float("nan"), torch.ones(2)])
def test_a_weight_that_is_no_number(weight: Any) -> None:
    run = run_of(nn.Linear(4, 2))
    with pytest.raises(phalanx.UserError, match=r"weight=.* is not a finite number from 0"):
        for batch in run:
            run.backward(loss_of(run, batch), weight=weight)


@pytest.mark.parametrize("loading", [{"multiprocessing_context": "fork"}, {}])
def test_workers_that_would_fork_a_rank(loading: dict[str, object]) -> None:
    data: object = INPUTS
    if not loading:
        data = DataLoader(TensorDataset(INPUTS), num_workers=2)
    with pytest.raises(phalanx.UserError, match="a fork of a rank shares its connections"):
        check_workers(data, {"num_workers": 2, **loading}, num_ranks=2)
    check_workers(data, {"num_workers": 2, **loading}, num_ranks=1)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (summed, 'the loss is a sum over 4 samples: .* leave reduction="sum" out'),
        (no_scalar, r"takes a scalar loss, but this has shape \(2,\): take its mean"),
        (no_graph, "the loss has no graph"),
        (lambda run, batch: loss_of(run, batch) * 1j, "takes a real loss, but this is .*complex"),
    ],
)
def test_losses(loss: Callable[[ProgramRun, object], Tensor], text: str) -> None:
    run = run_of(nn.Linear(4, 2))
    with pytest.raises(phalanx.UserError, match=text):
        for batch in run:
            run.backward(loss(run, batch))


def test_a_loss_that_is_not_finite_names_step_and_parameter() -> None:
    run = run_of(nn.Linear(4, 2))
    with pytest.raises(phalanx.UserError, match=r"step 1: .*the loss of rank 0 is nan; .* first"):
        for batch in run:
            run.backward(loss_of(run, batch) * (float("nan") if batch.step == 1 else 1.0))


def test_steps_that_are_not_finite_are_left_out_where_that_was_asked_for() -> None:
    model = nn.Linear(4, 2)
    run = run_of(model, bad_gradients="skip")
    parameters = []
    for batch in run:
        parameters.append(model.weight.detach().clone())
        run.backward(loss_of(run, batch) * (float("nan") if batch.step == 1 else 1.0))
    assert torch.equal(parameters[1], parameters[2])
    assert not torch.equal(parameters[0], parameters[1])


def test_backward_is_called_once_for_each_micro_batch() -> None:
    run = run_of(nn.Linear(4, 2), micro_batches=2)
    with pytest.raises(phalanx.UserError, match="not called for micro-batch 0 of step 0"):
        for _ in run:
            pass
    run = run_of(nn.Linear(4, 2))
    with pytest.raises(
        phalanx.UserError, match="is for the micro-batches of the run's loop, once for each"
    ):
        for batch in run:
            loss = loss_of(run, batch)
            run.backward(loss)
            run.backward(loss)


def test_a_loop_may_set_the_rate_of_each_step() -> None:
    """Before the backward pass of each micro-batch, as that of `phalanx train` does."""
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    run = phalanx.start(model, optimizer, (INPUTS, TARGETS), batch_size=4, micro_batches=2)
    for batch in run:
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + batch.step)
        run.backward(loss_of(run, batch))
    assert optimizer.param_groups[0]["lr"] == 0.1 / 3


def test_what_the_run_does_is_left_out_of_the_loop() -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(phalanx.UserError, match=r"optimizer.step\(\) was called in the loop"):
        for batch in (run := phalanx.start(model, optimizer, SAMPLES, batch_size=4)):
            run.backward(loss_of(run, batch))
            optimizer.step()
    optimizer = SGD(model.parameters(), lr=0.1)
    run = phalanx.start(model, optimizer, SAMPLES, batch_size=4, micro_batches=2)
    with pytest.raises(phalanx.UserError, match=r"leave zero_grad\(\) out of the loop"):
        for batch in run:
            optimizer.zero_grad()
            run.backward(loss_of(run, batch))


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("is_given", [False, True])
def test_a_scheduler_of_the_loop_follows_steps_and_not_micro_batches(is_given: bool) -> None:
    """One that the loop stepped after each micro-batch, or beside the run, went too fast, and
    nothing said so."""

    def train(*, after_steps: bool) -> float:
        model = nn.Linear(4, 2)
        optimizer = SGD(model.parameters(), lr=0.1)
        scheduler = StepLR(optimizer, 1, 0.5)
        given: dict[str, Any] = {"scheduler": scheduler} if is_given else {"micro_batches": 2}
        run = phalanx.start(model, optimizer, (INPUTS, TARGETS), batch_size=4, **given)
        for batch in run:
            run.backward(loss_of(run, batch))
            if batch.ends_step or not after_steps:
                scheduler.step()
        rate: float = optimizer.param_groups[0]["lr"]
        return rate

    where = "would step twice: leave" if is_given else "between two micro-batches of a step, as by"
    with pytest.raises(phalanx.UserError, match=where):
        train(after_steps=is_given)
    if not is_given:
        assert train(after_steps=True) == pytest.approx(0.1 / 2**3)


@pytest.mark.parametrize("is_set_to_none", [None, True, False])
def test_gradients_changed_after_their_update_are_reported(is_set_to_none: bool | None) -> None:
    """Clipping that was left in a loop did nothing, in silence. Clearing them does no harm."""
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for batch in (run := phalanx.start(model, optimizer, SAMPLES, batch_size=2)):
            run.backward(loss_of(run, batch))
            if is_set_to_none is None:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            else:
                optimizer.zero_grad(set_to_none=is_set_to_none)
    texts = [str(each.message) for each in said if "has no effect" in str(each.message)]
    assert len(texts) == (is_set_to_none is None)
    assert not texts or "clip_norm= to phalanx.start" in texts[0]


def test_model_and_optimizer_are_the_programs_own_after_the_loop() -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    for batch in (run := phalanx.start(model, optimizer, SAMPLES, batch_size=4)):
        run.backward(loss_of(run, batch))
    before = run.evaluate(lambda model, batch: model(batch[0]).sum(), SAMPLES)
    for batch in (left := phalanx.start(model, optimizer, SAMPLES, batch_size=4)):
        left.backward(loss_of(left, batch) * 0)
        break
    model(INPUTS).sum().backward()
    optimizer.step()
    assert run.evaluate(lambda model, batch: model(batch[0]).sum(), SAMPLES) < before


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ("mpi", "evaluated after the loop 1.0"),
        ("gloo", "phalanx: the loss was not computed by run.model, through which PyTorch"),
    ],
)
def test_a_wrapped_model_is_called_as_that_of_the_run(
    strategy: str, text: str, ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    assert text in ranks.mpi(2, programs("direct.py"), strategy, may_fail=True)


@pytest.mark.parametrize("weighted", [0, 1])
def test_weights_are_given_for_all_micro_batches_or_none(weighted: int) -> None:
    run = run_of(nn.Linear(4, 2), micro_batches=2)
    with pytest.raises(phalanx.UserError, match="for every micro-batch, or for none"):
        for batch in run:
            weight = 1.0 if batch.number == weighted else None
            run.backward(loss_of(run, batch), weight=weight)


def test_a_run_is_iterated_once() -> None:
    run = run_of(nn.Linear(4, 2))
    for batch in run:
        run.backward(loss_of(run, batch))
    with pytest.raises(phalanx.UserError, match="can be iterated only once"):
        next(iter(run))


def test_an_evaluation_leaves_the_modes_of_all_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2))
    with run_of(model) as run:
        run.evaluate(lambda model, _: float(model.training), INPUTS)
    assert [module.training for module in model.modules()] == [True, True, False, True]
    with run_of(model) as run, pytest.raises(phalanx.UserError, match="data has no samples"):
        run.evaluate(lambda *_: 0.0, INPUTS[:0])


class Signs(SGD):
    """An optimizer that a program derives from one of PyTorch's."""


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (SGD([INPUTS], lr=0.1, momentum=0.5), ("sgd", 0.5)),
        (SGD([INPUTS], lr=0.1, momentum=0.5, nesterov=True), None),
        (Signs([INPUTS], lr=0.1), None),
        (Adam([INPUTS], lr=0.1), ("adam", 0.0)),
        (AdamW([INPUTS], lr=0.1), ("adamw", 0.0)),
        (Adam([INPUTS], lr=0.1, amsgrad=True), None),
        (SGD([{"params": [INPUTS]}, {"params": [TARGETS]}], lr=0.1), None),
    ],
)
def test_only_what_kernels_do_is_taken_for_a_rule(
    optimizer: Optimizer, rule: tuple[str, float] | None
) -> None:
    found = rule_of(optimizer)
    assert (None if found is None else (found.name, found.momentum)) == rule


@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.usefixtures("restored_settings")
def test_what_is_not_finite_in_the_data_is_named_by_its_sample(bitwise: bool) -> None:
    """The advice was to lower the learning rate."""
    inputs, targets = torch.randn(12, 4), torch.randn(12, 2)
    inputs[7, 1] = torch.nan
    for data, where in (
        (
            (inputs, targets),
            r"nan in sample 7 \(row \d of micro-batch \d on rank 0\), in inputs: fix",
        ),
        (
            {"inputs": targets[:, :1].repeat(1, 4), "targets": inputs[:, :2]},
            "sample 7 .* in targets",
        ),
    ):
        run = run_of(nn.Linear(4, 2), data=data, bitwise=bitwise)
        with pytest.raises(phalanx.UserError, match=f"gradients are not finite.*{where}"):
            for batch in run:
                run.backward((run.model(batch.inputs) - batch.targets).square().mean())
    run = run_of(nn.Linear(4, 2), bitwise=bitwise)
    with pytest.raises(phalanx.UserError, match="lower the learning rate"):  # the data are fine
        for batch in run:
            run.backward(loss_of(run, batch) * torch.inf)


def test_the_norm_of_clipped_gradients_and_the_loss_of_a_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """People log both, and print with the arguments of `print`."""
    model = nn.Linear(4, 2)
    copy = [p.detach().clone().requires_grad_() for p in model.parameters()]
    run = run_of(model, clip_norm=0.1, steps=1, batch_size=12)
    assert run.grad_norm is None and run.step_loss is None
    for batch in run:
        loss = (nn.functional.linear(batch.inputs, *copy) - batch.targets).square().mean()
        loss.backward()
        run.backward(loss_of(run, batch))
    norm = torch.stack([p.grad.norm() for p in copy if p.grad is not None]).norm()
    assert run.grad_norm == pytest.approx(norm.item(), rel=1e-5) and run.grad_norm > 0.1
    assert run.step_loss == pytest.approx(loss.item(), rel=1e-5)
    run.print("a", "b", sep="-", end="|", flush=True)
    assert capsys.readouterr().out.endswith("a-b|")
