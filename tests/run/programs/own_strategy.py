"""The strategy of docs/strategies.md beside a vote that one process holds by itself, with uneven
parts of a batch; then gradients that are not finite, and what is refused.

Called with the folder of the page's modules.
"""

import sys

import torch
from torch import nn

import phalanx

sys.path.insert(0, sys.argv[1])
from majority_vote import MajorityVote

generator = torch.Generator().manual_seed(0)
INPUTS = torch.randn(50, 6, generator=generator)
TARGETS = (INPUTS[:, 0] > 0).long()
LOSS = nn.functional.cross_entropy
RATE = 0.01


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def start(trained: nn.Module, **options: object) -> phalanx.ProgramRun:
    optimizer = torch.optim.SGD(trained.parameters(), lr=RATE)
    given = {"batch_size": 20, "strategy": MajorityVote} | options
    return phalanx.start(trained, optimizer, (INPUTS, TARGETS), **given)  # type: ignore[arg-type]


def vote(parts: list[tuple[torch.Tensor, torch.Tensor]], truth: nn.Module) -> None:
    """Make the update of one batch, whose parts have a vote each."""
    votes = [torch.zeros_like(p) for p in truth.parameters()]
    for inputs, targets in parts:
        gradients = torch.autograd.grad(LOSS(truth(inputs), targets), list(truth.parameters()))
        for own, gradient in zip(votes, gradients, strict=True):
            own += gradient.sign()
    with torch.no_grad():
        for parameter, own in zip(truth.parameters(), votes, strict=True):
            parameter -= RATE * own.sign()


def check_votes() -> None:
    trained, truth = model(), model()
    run = start(trained, epochs=2)
    for batch in run:
        mine = torch.full((len(batch.inputs), 1), run.rank)
        owners, inputs, targets = map(run.gather, (mine, batch.inputs, batch.targets))
        owned = [owners[:, 0] == rank for rank in range(run.size)]
        run.backward(LOSS(run.model(batch.inputs), batch.targets))
        vote([(inputs[each], targets[each]) for each in owned if each.any()], truth)
    for (name, found), wanted in zip(trained.named_parameters(), truth.parameters(), strict=True):
        assert torch.equal(found, wanted), name
    run.close()


def check_nonfinite() -> None:
    run = start(model(), epochs=1)
    try:
        for batch in run:
            factor = torch.nan if run.rank == run.size - 1 else 1.0
            run.backward(LOSS(run.model(batch.inputs), batch.targets) * factor)
    except phalanx.UserError as error:
        assert "step 0: " in str(error) and f"rank {run.size - 1}" in str(error), error
    else:
        raise AssertionError("a NaN voted")


check_votes()
check_nonfinite()
print("voted")
