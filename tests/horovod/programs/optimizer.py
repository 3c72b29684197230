"""DistributedOptimizer against one process that sees all ranks' batches. Float64."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import phalanx.horovod as hvd
from phalanx.errors import UserError

hvd.init()
rank, size = hvd.rank(), hvd.size()
torch.set_default_dtype(torch.float64)
STEPS = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.apart = nn.Linear(9, 7), nn.Linear(7, 3), nn.Linear(9, 2)
        self.unused, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def batch(step: int, number: int, of_rank: int) -> Tensor:
    seed = (step * 10 + number) * 10 + of_rank
    return torch.randn(4, 9, generator=torch.Generator().manual_seed(seed))


def losses(model: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of all layers but one, and of that one."""
    return model(x).square().mean(), model.apart(x).square().mean()


def truth(kind: Callable[..., Any], passes: int, sums: bool) -> Net:
    """Every rank's gradients, added up over the passes, averaged or summed over the ranks."""
    torch.manual_seed(0)
    model = Net()
    optimizer = kind(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for other in range(size):
            for number in range(passes):
                loss = sum(losses(model, batch(step, number, other)))
                (loss * (1.0 if sums else 1 / size)).backward()
        for parameter in model.unused.parameters() if size > 1 else ():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return model


def trained(
    kind: Callable[..., Any], passes: int, *, set_to_none: bool = True, **options: Any
) -> Net:
    torch.manual_seed(rank)
    model = Net()
    if rank == 0:
        torch.manual_seed(0)
        model.load_state_dict(Net().state_dict())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        kind(model.parameters()),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=passes,
        **options,
    )
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        for number in range(passes):
            # Two backward passes of disjoint parameters count as one of each.
            for loss in losses(model, batch(step, number, rank)):
                loss.backward()
        if step == 1:  # collectives of the program meanwhile
            hvd.allreduce(torch.ones(3))
        optimizer.step()
    return model


def distance(a: Net, b: Net) -> float:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float((p - q).detach().abs().max()) for p, q in pairs)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


for kind, passes in ((sgd, 1), (sgd, 3), (adam, 2)):
    expected = truth(kind, passes, sums=False)
    for set_to_none in (True, False):
        found = distance(expected, trained(kind, passes, set_to_none=set_to_none))
        assert found < 1e-12, (kind, passes, set_to_none, found)
assert distance(truth(sgd, 1, sums=True), trained(sgd, 1, op=hvd.Sum)) < 1e-12
assert distance(truth(sgd, 1, sums=False), trained(sgd, 1, gradient_predivide_factor=2.0)) < 1e-12
halved = distance(truth(sgd, 1, sums=False), trained(sgd, 1, compression=hvd.Compression.fp16))
assert 0 < halved < 1e-2 or size == 1, halved

# As programs use it: a scheduler made before, clipping between synchronize and step.
torch.manual_seed(0)
model = Net()
plain = sgd(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
assert isinstance(optimizer, torch.optim.SGD)
model(batch(0, 0, rank)).square().mean().backward()
if size > 1:
    for refused in (optimizer.zero_grad, model(batch(0, 1, rank)).sum().backward):
        try:
            refused()
        except UserError as error:
            print(error)
        else:
            raise AssertionError("not refused")
optimizer.synchronize()
norms = hvd.allgather(nn.utils.clip_grad_norm_(model.parameters(), 0.01).reshape(1))
assert (norms == norms[0]).all()
clipped = [p.grad.clone() for p in model.parameters() if p.grad is not None]
with optimizer.skip_synchronize():
    optimizer.step()
assert all(
    torch.equal(p.grad, g)
    for p, g in zip([p for p in model.parameters() if p.grad is not None], clipped, strict=True)
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    scheduler.step()
assert optimizer.param_groups[0]["lr"] == 0.05
optimizer.synchronize()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    optimizer.step()
assert any("second time" in str(warning.message) for warning in caught)

# A closure, and sparse gradients.
table = nn.Embedding(6, 2, sparse=True)
hvd.broadcast_parameters(table.state_dict(), root_rank=0)
before = table.weight.detach().clone()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(table.parameters(), lr=1.0), sparse_as_dense=True
)


def closure() -> Tensor:
    optimizer.zero_grad()
    loss = table(torch.tensor([rank])).sum()
    loss.backward()
    return loss


assert isinstance(optimizer.step(closure), Tensor)
change = before - table.weight.detach()
assert torch.allclose(change[:size], torch.full((size, 2), 1 / size)) and not change[size:].any()
hvd.shutdown()
print(f"\nrank {rank} of {size} is done", flush=True)
