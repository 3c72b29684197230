"""Three ranks: a part of them trains, beside one that does something else; then mistakes, each of
which is told to every rank that can hear of it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from tests.parallel.stepping import make_step
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

import phalanx
from phalanx.parallel.make import JobRanks, make_on_devices
from phalanx.parallel.step import Batch, StepOptions
from phalanx.run.program import ProgramRun

WORLD = MPI.COMM_WORLD
RANK = WORLD.Get_rank()
torch.manual_seed(1)
DATA = torch.randn(30, 4, dtype=torch.float64), torch.randint(3, (30,))


def model_of(outputs: int = 3) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs)).double()


def start(model: nn.Module, data: object = DATA, kind: Any = SGD, **options: Any) -> ProgramRun:
    given = {"batch_size": 7, "epochs": 2, **options}
    return phalanx.start(model, kind(model.parameters(), lr=0.1), data, **given)


def train(run: ProgramRun, model: nn.Module | None = None, **options: Any) -> None:
    for batch in run:
        run.backward(loss_of(model or run.model, batch), **options)


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch.inputs), batch.targets)


def parts_of_the_world() -> None:
    """Ranks 0 and 2 train together, and rank 1 by itself: the same parameters."""
    part = WORLD.Split(RANK == 1)
    for strategy in ("mpi", "zero", "gloo"):
        model = model_of()
        run = start(model, kind=Adam, comm=part, strategy=strategy)
        assert (run.size, run.rank) == (part.Get_size(), part.Get_rank())
        train(run)
        found = torch.cat([p.detach().flatten() for p in model.parameters()])
        for other in WORLD.allgather(found.tolist()):
            assert (found - torch.tensor(other, dtype=found.dtype)).abs().max() < 1e-10, strategy
        run.close()
    ddp_on_backend_mpi(part)
    part.Free()


def ddp_on_backend_mpi(part: Any) -> None:
    """Replicas as ranks with GPUs have them, here without."""
    ranks = JobRanks(launched=None, timeout_s=30.0, communicator=part)
    world = ranks.join()
    strategy = make_on_devices(world, ranks.compare_devices(world), step=StepOptions())
    assert strategy.collective == "torch.distributed on mpi"
    model, truth = model_of(), model_of()
    strategy.prepare(model, SGD(model.parameters(), lr=0.1))
    own = slice(strategy.rank, None, strategy.size)
    make_step(strategy, Batch(DATA[0][own], DATA[1][own], 30 // strategy.size, 30, 0))
    F.cross_entropy(truth(DATA[0]), DATA[1]).backward()
    for parameter, other in zip(model.parameters(), truth.parameters(), strict=True):
        assert other.grad is not None
        assert (parameter - (other - 0.1 * other.grad)).abs().max() < 1e-12
    strategy.synchronize_buffers()
    strategy.close()


def expect(text: str, run: Callable[[], object]) -> None:
    try:
        run()
    except phalanx.UserError as error:
        assert text in str(error), (RANK, str(error))
    else:
        raise AssertionError(f"rank {RANK}: no error: {text}")


def leaves_after(steps: int, run: ProgramRun) -> ProgramRun:
    for batch in run:
        if batch.step == steps:
            break
        run.backward(loss_of(run.model, batch))
    return run


def gradients_that_are_not_finite() -> None:
    """Those of one rank are told by every strategy, or left out."""
    for strategy in ("mpi", "shared", "zero", "gloo", "local"):
        model = model_of()
        run = start(model, strategy=strategy, bad_gradients="skip")
        spoil(run)
        assert all(bool(p.isfinite().all()) for p in model.parameters()), strategy
    for strategy in ("mpi", "shared", "zero", "gloo"):
        with start(model_of(), strategy=strategy) as run:
            words = "step 1: gradients are not finite: the loss of rank 1 is nan"
            expect(words, lambda: spoil(run))


def spoil(run: ProgramRun) -> None:
    for batch in run:
        run.backward(loss_of(run.model, batch) * spoiled(batch))


def spoiled(batch: Any) -> float:
    return float("nan") if RANK == 1 and batch.step == 1 else 1.0


class OneOfTwo(nn.Module):
    """Has a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = model_of(), nn.Linear(4, 3).double()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.used(inputs)
        return outputs


def mistakes() -> None:
    expect(
        "the model of rank 2 differs from rank 0's at 2.weight (float64, (3, 8)), where it has 2.w",
        lambda: start(model_of(5 if RANK == 2 else 3)),
    )
    more = nn.ModuleList([model_of(), *[nn.Linear(1, 1)] * (RANK == 1)])
    expect("the model of rank 1 has more tensors than rank 0's", lambda: start(more))
    expect(
        "rank 1 was started with seed=1, but rank 0 with 0",
        lambda: start(model_of(), seed=int(RANK == 1)),
    )
    weight = {"weight": 2.0} if RANK == 1 else {}
    expect(
        "only some ranks (1) give run.backward a weight=",
        lambda: train(start(model_of()), **weight),
    )
    items = [(DATA[0][:3], DATA[1][:3])] * (2 if RANK == 2 else 3)
    expect(
        "the iterator of rank 2 ended before step 2, but other ranks have more",
        lambda: train(start(model_of(), items, sharded=True, epochs=1)),
    )
    alone = {"strategy": "local", "strategy_options": {"local_steps": 99}}
    expect(
        "after different updates: rank 0 after 1, rank 1 after 2, rank 2 after 1",
        lambda: leaves_after(1 + (RANK == 1), start(model_of(), **alone)).close(),
    )
    leaves_after(2, start(model_of())).close()
    model = OneOfTwo()
    for text, module in [("the loss does not reach unused.weight", None), ("by run.model", model)]:
        run = start(model, strategy="gloo")
        expect(text, lambda: train(run, module))  # noqa: B023  called at once
        dist.destroy_process_group()
    waiting = start(model_of(), timeout_s=2.0)
    if RANK == 0:
        expect(
            "rank 0 left its loop after 1 updates, and other ranks did not",
            lambda: leaves_after(1, waiting).reduce(1.0),
        )
    else:
        expect(
            "step 1: rank 0 left its loop after 1 updates, unlike other ranks: end it on all",
            lambda: train(waiting),
        )


if __name__ == "__main__":
    parts_of_the_world()
    gradients_that_are_not_finite()
    mistakes()
    print(f"rank {RANK} is through", flush=True)
