"""Each rank: a model whose parameters the ranks share.

Words: "once", that there is one copy of everything, and that all ranks refuse what one of them must
not apply; "late", that one rank stays away.
"""

import copy
import os
import sys
import time

import torch
from tests.parallel.stepping import make_step
from torch import Tensor, nn

from phalanx.comm.wait import WaitTimeoutError
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.shared import Shared
from phalanx.parallel.step import Batch

ADAM = OptimizerConfig(name="adam", learning_rate=0.1)


class Model(nn.Module):
    """With a frozen parameter, and one that the loss does not reach."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.rand(7, 100, generator=generator))
        self.unused = nn.Parameter(torch.rand(33, generator=generator))
        self.frozen = nn.Parameter(torch.rand(5, generator=generator), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight @ x).sum()


def update(strategy: Shared, loss_sum: Tensor) -> None:
    strategy.backward_and_reduce(loss_sum, 1 / 10)
    assert strategy.update()


def once(strategy: Shared, model: Model) -> None:
    first = Model(0)
    for parameter, wanted in zip(model.parameters(), first.parameters(), strict=True):
        assert torch.equal(parameter, wanted), "not the weights of rank 0"
        assert not parameter.requires_grad or parameter.data_ptr() % 64 == 0
    writer = strategy.size - 1
    strategy.group.barrier()
    if strategy.rank == writer:
        with torch.no_grad():
            model.weight[3, 5] = 42.0
            strategy.optimizer.state[model.weight]["exp_avg"][1, 2] = 24.0
    strategy.group.barrier()
    assert model.weight[3, 5] == 42.0
    assert strategy.optimizer.state[model.weight]["exp_avg"][1, 2] == 24.0
    strategy.group.barrier()

    before = model.unused.detach().clone()
    for step in (1, 2):
        strategy.clear_gradients()
        update(strategy, model(torch.full((100,), strategy.rank + 1.0)))
        assert strategy.optimizer.state[model.weight]["step"] == step
    moments = strategy.optimizer.state[model.weight]["exp_avg"]
    total = strategy.size * (strategy.size + 1) / 2 / 10  # the gradient of every weight
    assert torch.allclose(moments[0], torch.full((100,), total * (1 - 0.9**2)))
    assert torch.equal(model.unused, before), "a gradient of zeros moves nothing"

    optimizer = strategy.optimizer
    saved = copy.deepcopy(optimizer.state_dict())
    places = {p: state["exp_avg"].data_ptr() for p, state in optimizer.state.items()}
    strategy.group.barrier()
    strategy.clear_gradients()
    update(strategy, model(torch.ones(100)))
    assert not torch.equal(moments, saved["state"][0]["exp_avg"])
    strategy.group.barrier()
    optimizer.load_state_dict(saved)
    strategy.group.barrier()
    assert torch.equal(moments, saved["state"][0]["exp_avg"])
    assert optimizer.state[model.weight]["step"] == 2
    assert places == {p: state["exp_avg"].data_ptr() for p, state in optimizer.state.items()}

    kept = model.weight.detach().clone()
    strategy.group.barrier()
    strategy.close()
    assert torch.equal(model.weight, kept), "the model keeps its parameters"


def refused() -> None:
    """Every rank ends with the same line, not the bad one alone: the others would wait for it, and
    report that it does not come."""
    strategy, model = Shared(World.create(timeout_s=30)), nn.Linear(3, 4)
    strategy.prepare(model, ADAM)
    good = torch.ones(2, 3)
    bad = good * torch.nan if strategy.rank == strategy.size - 1 else good
    targets = torch.tensor([1, 3])
    for step, inputs in enumerate((good, bad, good)):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        strategy.group.barrier()
        try:
            make_step(strategy, Batch(inputs, targets, 2, 2 * strategy.size, step))
        except UserError as error:
            assert step == 1
            assert all(map(torch.equal, model.parameters(), before))
            print(f"rank {strategy.rank} says: {error}", flush=True)
        else:
            assert step != 1
            assert not torch.equal(model.weight, before[0])
        strategy.group.barrier()
    assert strategy.optimizer.state[model.weight]["step"] == 2
    model.weight.grad, model.bias.grad = bad[:1].expand(4, 3), torch.ones(4)
    assert not strategy.optimizer.apply(), "a gradient that is not finite was applied"
    strategy.close()


def late(strategy: Shared, model: Model) -> None:
    if strategy.rank == 1:
        time.sleep(6)
        os._exit(0)
    try:
        update(strategy, model(torch.ones(100)))
    except WaitTimeoutError as error:
        print(f"rank {strategy.rank} says: {error}", flush=True)
    time.sleep(4)  # keep the launcher from ending the others before they have spoken
    os._exit(0)


def main(what: str) -> None:
    strategy = Shared(World.create(timeout_s=1.0 if what == "late" else 30.0))
    model = Model(strategy.rank)
    strategy.prepare(model, ADAM)
    (late if what == "late" else once)(strategy, model)
    if what == "once":
        refused()
    print(f"rank {strategy.rank} is done", flush=True)


main(sys.argv[1])
