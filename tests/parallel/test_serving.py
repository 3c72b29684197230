"""Who may go on, and how old the weights were: any order in which workers may come. An optimizer of
a slice makes the numbers of an optimizer of the parameters."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.parallel.serving import Clocks, ServerShard, export_optimizer_state
from phalanx.parallel.vector import flatten_parameters, views_of


def in_any_order(
    clocks: Clocks, workers: int, num_steps: int, choose
) -> tuple[list[list[int]], list[int]]:
    """Workers push in an order that `choose` decides; after each push every worker's steps done,
    and how many updates of others each push came after."""
    done, free = [0] * workers, set(range(workers))
    histories, updates_seen, updates, staleness = [], [0] * workers, 0, []
    while free:
        worker = choose(sorted(free))
        assert worker in clocks.awaited
        free.remove(worker)
        staleness.append(updates - updates_seen[worker])
        updates += 1
        done[worker] += 1
        for released in clocks.push(worker):
            updates_seen[released] = updates
            if done[released] < num_steps:
                free.add(released)
        histories.append(list(done))
    return histories, staleness


@given(
    st.integers(1, 5),
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(0, 4)),
    st.randoms(use_true_random=False),
)
def test_nobody_is_further_ahead_than_allowed_and_all_come_to_the_end(
    workers: int, num_steps: int, max_lead: int | None, random
) -> None:
    clocks = Clocks(workers, num_steps, max_lead)
    histories, staleness = in_any_order(clocks, workers, num_steps, random.choice)
    assert histories[-1] == [num_steps] * workers
    assert clocks.awaited == []
    if max_lead is not None:
        # A step that is being made counts when it is done: one more than at its beginning.
        assert max(max(done) - min(done) for done in histories) <= max_lead + 1
        assert max(clocks.leads, default=0) <= max_lead
    assert clocks.staleness == Counter(staleness)
    assert sum(clocks.staleness.values()) == workers * num_steps
    assert sum(clocks.leads.values()) == workers * (num_steps - 1)


def test_with_no_lead_all_begin_every_step_together() -> None:
    clocks = Clocks(3, 2, 0)
    assert clocks.push(1) == []
    assert clocks.push(0) == []
    assert clocks.awaited == [2]
    assert clocks.push(2) == [0, 1, 2]
    assert clocks.leads == {0: 3}
    assert clocks.staleness == {0: 1, 1: 1, 2: 1}, "in step, yet of weights that others changed"


def test_without_a_bound_a_worker_waits_for_the_others_only_at_the_end() -> None:
    clocks = Clocks(2, 3, None)
    assert clocks.push(0) == [0]
    assert clocks.push(0) == [0]
    assert clocks.push(0) == []
    assert clocks.leads == {1: 1, 2: 1}
    assert clocks.push(1) == [1]
    assert clocks.push(1) == [1]
    assert clocks.push(1) == [0, 1]
    assert clocks.staleness == {0: 5, 3: 1}


@pytest.mark.parametrize("max_lead", [0, 2, None])
def test_a_step_without_samples_counts_as_a_step_and_not_as_an_update(
    max_lead: int | None,
) -> None:
    clocks = Clocks(2, 1, max_lead)
    clocks.push(0, writes=False)
    assert clocks.push(1) == [0, 1]
    assert clocks.staleness == {0: 1}


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
