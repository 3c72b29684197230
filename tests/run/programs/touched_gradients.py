"""Gradients that a program changes, keeps or drops, by every way to train: against a plain loop.

Words: "some" or "all" of the cases.
"""

import copy
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from itertools import cycle, product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, SGD, Muon, Optimizer, SparseAdam

import phalanx
import phalanx.horovod as hvd
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.jobs.detect import detect

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
SAMPLES, STEPS = 12, 4  # a batch is all of them, in any order
X, Y = torch.randn(SAMPLES, 6), torch.randn(SAMPLES, 3)
Parameters = list[nn.Parameter]


class Touch:
    """A program that does nothing to its gradients; others do, on every rank alike."""

    def before(self, parameters: Parameters) -> None:
        """Between the sums and the update."""

    def after(self, parameters: Parameters) -> None:
        """After the update."""

    def is_intact(self) -> bool:
        """Return whether what was kept is as it was, after the run is closed."""
        return True


class Changed(Touch):
    """In place: clipped, with weight decay; afterwards overwritten, which nobody may notice."""

    def before(self, parameters: Parameters) -> None:
        nn.utils.clip_grad_norm_(parameters, 0.3)
        for p in parameters:
            p.grad.add_(p.detach(), alpha=0.1)

    def after(self, parameters: Parameters) -> None:
        for p in parameters:
            p.grad.fill_(torch.nan)


class Kept(Touch):
    """Without a clone, as optimistic gradient descent does."""

    def __init__(self) -> None:
        self.last: dict[nn.Parameter, Tensor] = {}
        self.seen: list[tuple[Tensor, Tensor]] = []

    def before(self, parameters: Parameters) -> None:
        for p in parameters:
            gradient, last = p.grad, self.last.get(p, torch.zeros_like(p))
            self.seen.append((gradient, gradient.clone()))
            p.grad, self.last[p] = 2 * gradient - last, gradient

    def is_intact(self) -> bool:
        return all(torch.equal(gradient, then) for gradient, then in self.seen)


class Dropped(Touch):
    """A parameter that some steps leave out; all gradients are gone afterwards."""

    num_steps = 0

    def before(self, parameters: Parameters) -> None:
        self.num_steps += 1
        if self.num_steps % 2 == 0:
            parameters[0].grad = None

    def after(self, parameters: Parameters) -> None:
        for p in parameters:
            del p.grad


TOUCHES = (Touch, Changed, Kept, Dropped)


class Made(NamedTuple):
    """An optimizer and its options."""

    kind: Callable[..., Optimizer]
    options: dict[str, Any]


def optimizers() -> Iterator[Made]:
    """Every optimizer of torch.optim that takes dense gradients of vectors, in each of its ways;
    Muon, which rounds to bfloat16, would tell no fault from rounding."""
    left_out = (Optimizer, LBFGS, SparseAdam, Muon)
    for kind in vars(torch.optim).values():
        if not inspect.isclass(kind) or not issubclass(kind, Optimizer) or kind in left_out:
            continue
        known = inspect.signature(kind).parameters
        options = {"lr": 0.02}
        options |= {k: v for k, v in {"momentum": 0.9, "weight_decay": 0.1}.items() if k in known}
        for way in ({"foreach": False}, {"foreach": True}, {"fused": True}):
            if way.keys() <= known.keys():
                yield Made(kind, options | way)
    for is_foreach in (False, True):
        yield Made(SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True, "foreach": is_foreach})


IN_PLACE = Made(SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True, "foreach": True})
PLAIN_SGD = Made(SGD, {"lr": 0.02})


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3)
    )


class Images(nn.Module):
    """Weights in another order in memory than their gradients have in most reducers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 4, 2), nn.Linear(8, 3)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        images = torch.stack([x, x.square(), x.sin()], 1).view(-1, 3, 3, 2)
        return self.head(torch.tanh(self.convolution(images)).flatten(1))


class Conjugate(nn.Module):
    """A gradient that PyTorch conjugates when it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.complex128) @ (self.weight.conj() * (1 + 2j))).real


def trained_plainly(model: nn.Module, made: Made, touch: Touch) -> None:
    parameters = list(model.parameters())
    optimizer = made.kind(parameters, **made.options)
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(model(X), Y).backward()
        touch.before(parameters)
        optimizer.step()
        touch.after(parameters)


Surface = Callable[[nn.Module, Made, Touch], None]


def started(**options: Any) -> Surface:
    """`phalanx.start`, whose optimizer has a hook."""

    def train(model: nn.Module, made: Made, touch: Touch) -> None:
        parameters = list(model.parameters())
        optimizer = made.kind(parameters, **made.options)
        optimizer.register_step_pre_hook(lambda *_: touch.before(parameters))
        run = phalanx.start(model, optimizer, (X, Y), batch_size=SAMPLES, epochs=STEPS, **options)
        for batch in run:
            run.backward(mse_loss(run.model(batch.inputs), batch.targets))
            if batch.ends_step:
                touch.after(parameters)
        run.close()

    return train


def with_horovod(model: nn.Module, made: Made, touch: Touch) -> None:
    hvd.init()
    own = slice(hvd.rank(), None, hvd.size())
    parameters = list(model.parameters())
    optimizer = hvd.DistributedOptimizer(made.kind(parameters, **made.options))
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(model(X[own]), Y[own]).backward()
        optimizer.synchronize()
        touch.before(parameters)
        with optimizer.skip_synchronize():
            optimizer.step()
        touch.after(parameters)


def wrapped(wrap: Callable[[nn.Module], nn.Module]) -> Surface:
    """A plain loop of a model that sums its gradients in the backward pass."""

    def train(model: nn.Module, made: Made, touch: Touch) -> None:
        own = slice(RANK, None, SIZE)
        parallel, parameters = wrap(model), list(model.parameters())
        optimizer = made.kind(parameters, **made.options)
        for _ in range(STEPS):
            optimizer.zero_grad()
            mse_loss(parallel(X[own]), Y[own]).backward()
            touch.before(parameters)
            optimizer.step()
            touch.after(parameters)

    return train


def views(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


MPI: dict[str, Surface] = {
    "start": started(),
    "micro-batches": started(micro_batches=5),
    "overlap": started(strategy_options={"overlap": "on"}),
    "messages": started(strategy_options={"all_reduce": "ring"}),
    "bitwise": started(bitwise=True),
    "bitwise, overlap": started(bitwise=True, strategy_options={"overlap": "on"}),
    "gloo": started(strategy="gloo"),
}
OTHERS: dict[str, Surface] = {
    "DataParallel": wrapped(lambda model: phalanx.DataParallel(model, WORLD, bucket_bytes=900)),
    "Horovod": with_horovod,
    "DDP": wrapped(DistributedDataParallel),
}
"""Those after which torch.distributed has a default group."""
DDP_VIEWS = {"DDP, views": wrapped(views)}
LINEAR: dict[str, Surface] = {
    "local": started(strategy="local", strategy_options={"local_steps": 1}),
    "fp16": started(strategy_options={"compress": "fp16"}),
}


class Case(NamedTuple):
    surface: str
    made: Made
    touch: type[Touch]
    model: Callable[[], nn.Module] = net


def cases(surfaces: dict[str, Surface], *, has_all: bool) -> Iterator[Case]:
    touches = TOUCHES if surfaces is not DDP_VIEWS else (Touch, Changed, Dropped)
    if has_all:
        yield from (Case(*case) for case in product(surfaces, optimizers(), touches))
    else:
        yield from (Case(name, IN_PLACE, touch) for name, touch in product(surfaces, touches))
    if surfaces is MPI and not has_all:
        every = cycle(product(surfaces, TOUCHES))
        for made in optimizers():
            name, touch = next(every)
            yield Case(name, made, touch)
    if surfaces is LINEAR:
        return
    fused = Made(torch.optim.Adam, {"lr": 0.02, "fused": True})
    yield from (Case(name, fused, Touch, Images) for name in surfaces)
    yield from (Case(name, PLAIN_SGD, Touch, Conjugate) for name in surfaces)


def clip(*_: object) -> None:
    raise AssertionError("it was called")


def check_refused() -> None:
    """A step hook that would see the gradients of one rank, or be passed over."""
    for strategy, is_bitwise in product(("shared", "zero"), (False, True)):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.02)
        data = (X, Y)
        run = phalanx.start(
            model, optimizer, data, batch_size=SAMPLES, strategy=strategy, bitwise=is_bitwise
        )
        before = copy.deepcopy(model.state_dict())
        if is_bitwise:
            optimizer.register_step_post_hook(clip)
        else:
            optimizer.register_step_pre_hook(clip)
        try:
            for batch in run:
                run.backward(mse_loss(run.model(batch.inputs), batch.targets))
        except UserError as error:
            assert "has a step hook (clip)" in str(error), error
            assert all(map(torch.equal, model.state_dict().values(), before.values()))
        else:
            raise AssertionError("it was passed over in silence")
        run._strategy.close()


def check_changed_parameters() -> None:
    """Weight decay by hand, on the one copy that all ranks of a node have."""
    for is_bitwise in (False, True):
        model = net()
        options: dict[str, Any] = {"strategy": "shared", "bitwise": is_bitwise}
        optimizer = SGD(model.parameters(), lr=0.02)
        run = phalanx.start(model, optimizer, (X, Y), batch_size=SAMPLES, epochs=2, **options)
        try:
            for batch in run:
                run.backward(mse_loss(run.model(batch.inputs), batch.targets))
                with torch.no_grad():
                    torch._foreach_mul_(list(model.parameters()), 0.99)
        except UserError as error:
            assert "0.weight was changed in place between two steps" in str(error), error
        else:
            assert run.size == 1, "every rank has multiplied the same memory"
        run._strategy.close()


def difference(case: Case, train: Surface) -> float:
    """Largest difference of the parameters to those of a plain loop; inf where a gradient that the
    program kept has changed."""
    torch.manual_seed(1)
    found = case.model()
    expected, touch = copy.deepcopy(found), case.touch()
    train(found, case.made, touch)
    if not touch.is_intact():
        return torch.inf
    trained_plainly(expected, case.made, case.touch())
    pairs = zip(found.parameters(), expected.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def main(words: str) -> None:
    wrong, num_cases = [], 0
    check_refused()
    check_changed_parameters()
    for surfaces in (MPI, LINEAR, OTHERS, DDP_VIEWS):
        if surfaces is OTHERS:
            dist.init_process_group("mpi")
        for case in cases(surfaces, has_all=words == "all"):
            if surfaces is LINEAR:
                if case.touch is Changed:
                    continue
                case = case._replace(made=PLAIN_SGD)
            off = difference(case, surfaces[case.surface])
            num_cases += 1
            if not off < (1e-3 if case.surface == "fp16" else 1e-10):
                name = f"{case.surface}, {case.made.kind.__name__} {case.made.options}"
                wrong.append(f"{name}, {case.touch.__name__}, {case.model.__name__}: {off:.1e}")
    print(f"rank {RANK} of {SIZE}: {num_cases} cases, {len(wrong)} wrong", *wrong, sep="\n")
    sys.stdout.flush()
    dist.destroy_process_group()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    launched = detect(os.environ)
    RANK, SIZE = (launched.rank, launched.world_size) if launched else (0, 1)
    WORLD = World.create(timeout_s=120)
    main(sys.argv[1])
