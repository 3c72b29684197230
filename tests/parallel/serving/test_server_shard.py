"""An optimizer of a slice makes the numbers of an optimizer of the parameters."""

import pytest
import torch
from torch import Tensor, nn

from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.parallel.serving.server_shard import ServerShard, export_optimizer_state
from phalanx.parallel.vector import flatten_parameters, views_of

RULES = {
    "adam": OptimizerConfig(name="adam", learning_rate=0.01),
    "adamw": OptimizerConfig(name="adamw", learning_rate=0.01, weight_decay=0.1),
    "sgd": OptimizerConfig(name="sgd", learning_rate=0.01, momentum=0.9),
    "plain": OptimizerConfig(name="sgd", learning_rate=0.01),
}
SIZES = ((3, 5), (7,), (2, 2, 2))
CUT = range(4, 19)  # begins and ends within a parameter


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [
        nn.Parameter(torch.rand(shape, generator=generator, dtype=torch.float64)) for shape in SIZES
    ]


def gradients(step: int, like: Tensor) -> Tensor:
    return torch.rand(len(like), generator=torch.Generator().manual_seed(step), dtype=like.dtype)


def by_torch(rule: OptimizerConfig, steps: range, optimizer=None, of=None):
    """Parameters and optimizer after `steps` updates of all parameters."""
    of = of or parameters()
    vector = flatten_parameters(of)
    optimizer = optimizer or torch_optimizer(rule, of)
    for step in steps:
        for parameter, gradient in zip(of, views_of(gradients(step, vector), of), strict=True):
            parameter.grad = gradient
        optimizer.param_groups[0]["lr"] = rule.learning_rate / (step + 1)
        optimizer.step()
    return of, optimizer, vector


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_share_goes_on_from_a_state_and_gives_it_back(rule: OptimizerConfig) -> None:
    truth, whole, expected = by_torch(rule, range(6))
    mine, begun, vector = by_torch(rule, range(3))
    shards = [ServerShard(vector, span, rule) for span in (range(4), CUT, range(19, 30))]
    states = [dict(state) for state in begun.state.values()]
    for shard in shards:
        for parameter, state in zip(mine, states, strict=False):
            begun.state[parameter] = dict(state)
        shard.load_optimizer_state(mine, begun)
        assert not begun.state
    for step in range(3, 6):
        gradient = gradients(step, vector)
        for shard in shards:
            span = gradient[shard.span.start : shard.span.stop].clone()
            shard.update(span, rule.learning_rate / (step + 1))
    assert torch.allclose(vector, expected, rtol=0, atol=1e-14)
    by_quantity = zip(*(shard.state() for shard in shards), strict=True)
    whole_state = [torch.cat(parts) for parts in by_quantity]
    export_optimizer_state(rule, whole_state, shards[0].steps, mine, begun)
    for parameter, other in zip(mine, truth, strict=True):
        assert begun.state[parameter].keys() == {
            k for k, v in whole.state[other].items() if v is not None
        }
        for name, value in begun.state[parameter].items():
            assert torch.allclose(value, whole.state[other][name], rtol=0, atol=1e-14), name
            assert value.dtype == whole.state[other][name].dtype
