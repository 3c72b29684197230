"""What the programs here share: a model, batches, and the parameters that one process trains."""

import time
from collections.abc import Callable, Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

GLOBAL_BATCH_SIZE = 24  # 2, 3 and 4 ranks get equal parts, and these equal micro-batches
WIDTH = 61  # neither 2 nor 3 nor 4 divides it
NUM_INPUTS, NUM_OUTPUTS = 12, 5
NUM_STEPS = 4

Batch = tuple[Tensor, Tensor]


def net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The same weights on every rank."""
    torch.manual_seed(7)
    layers = (nn.Linear(NUM_INPUTS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    return nn.Sequential(*layers, nn.Linear(WIDTH, NUM_OUTPUTS)).to(dtype)


def batch(step: int, dtype: torch.dtype = torch.float64) -> Batch:
    """The global batch of `step`."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(GLOBAL_BATCH_SIZE, NUM_INPUTS, generator=generator, dtype=torch.float64)
    targets = torch.randn(GLOBAL_BATCH_SIZE, NUM_OUTPUTS, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), targets.to(dtype)


def part(whole: Batch, group: dist.ProcessGroup | None = None) -> Batch:
    """The samples of this rank."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    inputs, targets = (tensor.chunk(size)[rank] for tensor in whole)
    return inputs, targets


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def loss_of(model: nn.Module, given: Batch) -> Tensor:
    inputs, targets = given
    return nn.functional.mse_loss(model(inputs).to(targets.dtype), targets)


def train(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Batch],
    loss: Callable[[nn.Module, Batch], Tensor] = loss_of,
) -> None:
    for given in batches:
        optimizer.zero_grad()
        loss(model, given).backward()
        optimizer.step()


def batches(steps: Iterable[int] = range(NUM_STEPS)) -> list[Batch]:
    return [batch(step) for step in steps]


def parts(
    steps: Iterable[int] = range(NUM_STEPS), group: dist.ProcessGroup | None = None
) -> list[Batch]:
    return [part(batch(step), group) for step in steps]


def trained(
    make: Callable[[Iterable[nn.Parameter]], Optimizer] = sgd, num_steps: int = NUM_STEPS
) -> nn.Sequential:
    """By one process, on global batches."""
    model = net()
    train(model, make(model.parameters()), batches(range(num_steps)))
    return model


def close(got: Tensor, expected: Tensor, text: str, tolerance: float = 1e-10) -> None:
    assert got.shape == expected.shape, f"{text}: {tuple(got.shape)}, not {tuple(expected.shape)}"
    difference = (got.detach().double() - expected.detach().double()).abs()
    farthest = difference.max().item() if got.numel() else 0.0
    assert farthest <= tolerance, f"{text} is {farthest:.1e} away from the truth"


def same_parameters(
    got: nn.Module | Mapping[str, Tensor],
    expected: nn.Module | Mapping[str, Tensor],
    tolerance: float = 1e-10,
) -> None:
    """Of two models, or of their state dicts."""
    mine = got if isinstance(got, Mapping) else dict(got.named_parameters())
    truth = expected if isinstance(expected, Mapping) else dict(expected.named_parameters())
    assert mine.keys() == truth.keys(), f"{sorted(mine)}, not {sorted(truth)}"
    for name, tensor in mine.items():
        close(tensor, truth[name], name, tolerance)


def same_on_all(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Bit for bit."""
    for tensor in tensors:
        theirs = tensor.detach().clone()
        dist.broadcast(theirs, group=group, group_src=0)
        assert torch.equal(theirs, tensor.detach()), "ranks have different bits"


def run(*checks: Callable[[], None]) -> None:
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        way = "memory" if dist.group.WORLD.buckets._shm is not None else "messages"
        print(f"ranks exchange {way}", flush=True)
    for check in checks:
        begun = time.perf_counter()
        check()
        dist.barrier()
        if rank == 0:
            print(f"{check.__name__}: {time.perf_counter() - begun:.2f} s", flush=True)
    dist.destroy_process_group()
    print(f"rank {rank} of {size} is done", flush=True)
