"""On-policy training by PPO: a policy that brings points to the middle learns from its actions.

    python examples/16_on_policy.py
    phalanx launch -n 3 examples/16_on_policy.py

Different from 11: the model, as last updated, makes the data, which are used in several passes.
Each rank moves its own points; advantages are normalised over all ranks.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributions import Normal

import phalanx

POINTS, TIMES, ROLLOUTS, PASSES, PARTS = 24, 16, 25, 4, 2
torch.set_default_dtype(torch.float64)


class Policy(nn.Module):
    """Force on a point, with a deviation that is learned, and the value of its place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))
        self.log_deviation = nn.Parameter(torch.zeros(1))

    def forward(self, places: Tensor) -> tuple[Normal, Tensor]:
        outputs = self.layers(places)
        return Normal(outputs[..., :2], self.log_deviation.exp()), outputs[..., 2]


@torch.no_grad()
def rollout(number: int) -> list[Tensor]:
    """Return places, forces, their log-probabilities, advantages and returns, by time and point."""
    draws = [torch.Generator().manual_seed(POINTS * number + point) for point in own]
    place, *noise = torch.stack([torch.randn(TIMES + 1, 2, generator=each) for each in draws], 1)
    seen = []
    for each in noise:
        policy, value = model(place)
        force = policy.mean + policy.stddev * each
        seen.append((place, force, policy.log_prob(force).sum(-1), value, -place.norm(dim=1)))
        place = place + 0.3 * force
    places, forces, log_probs, values, gains = map(torch.stack, zip(*seen, strict=True))
    for time in reversed(range(TIMES - 1)):
        gains[time] += 0.8 * gains[time + 1]
    return [places, forces, log_probs, gains - values, gains]


def batches() -> Iterator[list[Tensor]]:
    """Yield parts of each rollout, in several passes."""
    for number in range(ROLLOUTS):
        *made, advantages, gains = rollout(number)
        mean = run.reduce(advantages.sum()) / (POINTS * TIMES)
        variance = run.reduce((advantages - mean).square().sum()) / (POINTS * TIMES)
        made += [(advantages - mean) / variance**0.5, gains]
        for times in torch.arange(PASSES * TIMES).view(PASSES * PARTS, -1) % TIMES:
            yield [each[times].flatten(0, 1) for each in made]


torch.manual_seed(0)
model = Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = phalanx.start(model, optimizer, batches(), batch_size=192, sharded=True)
own = range(POINTS)[run.rank :: run.size]
for places, forces, log_probs, advantages, gains in run:
    policy, values = run.model(places)
    ratio = (policy.log_prob(forces).sum(-1) - log_probs).exp()
    gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    run.backward(((values - gains).square() - gain).mean())
far = run.reduce(rollout(0)[0][-1].norm(dim=1).sum()) / POINTS
run.print(f"points end {far:.12f} from the middle")
