"""Cost of the check for non-finite gradients in every step, as a share of a step's time.

    python benchmarks/gradient_check.py    # half a minute

The same model trains with the check and without it, in turns of a few steps. Each rank has a batch
of 128 random images and one compute thread.

    sequential  one process; the check is one call that reads all gradients (`are_finite`), timed by
                itself right after a step; beside it the sum of their squares, which clipping needs
                and every step computed before
    shared      2 ranks; gradients are checked while they are copied for the peers, so the cost is
                the fused step of ranks that begin together with the check, less that without it

All times are CPU time of the thread, which other processes disturb least. Shares are of a step of
one process, which has as many samples. Medians and quartiles, for `shared` of both ranks, go to
runs/benchmarks/gradient_check.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from harness import run_ranks, save
from phalanx.comm.world import World
from phalanx.gradients.flat_grad_buffer import FlatGradBuffer
from phalanx.gradients.fused import FusedOptimizerStep
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.models.build import build_model
from phalanx.models.options import ModelName
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.shared import Shared
from phalanx.parallel.step import Batch
from phalanx.parallel.strategy import Strategy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.parallel.stepping import make_step

STEPS: dict[ModelName, int] = {"mlp": 400, "cnn": 50}
TURN = 10
RULE = OptimizerConfig(name="sgd", learning_rate=0.01)
Times = dict[str, list[float]]
JOIN = FlatGradBuffer.join


class Unchecked(Replicas):
    """Replicas that apply gradients unchecked."""

    def clip_factor(self, scale: float = 1.0) -> float:  # noqa: ARG002
        return 1.0


class TimedStep(FusedOptimizerStep):
    """A step whose ranks begin together, timed."""

    world: World
    worked_s = 0.0

    def step_at(self, addresses: Sequence[int], learning_rate: float, step: int) -> float | None:
        self.world.barrier()
        began = time.thread_time()
        own_s = super().step_at(addresses, learning_rate, step)
        self.worked_s = time.thread_time() - began
        return own_s


def join_unguarded(*args: Any, **kwargs: Any) -> FlatGradBuffer | None:
    return JOIN(*args, **{**kwargs, "guarded": False})


def random_batch(data_size: int) -> Batch:
    return Batch(torch.rand(128, 1, 28, 28), torch.randint(10, (128,)), 128, 128 * data_size, 0)


def in_turns(
    strategies: Mapping[str, Strategy], batch: Batch, steps: int, look: Callable[[str], None]
) -> Times:
    """Return seconds of each strategy's steps but a turn's first, whose caches are the other's.
    look: called after each of these steps."""
    times: Times = {name: [] for name in strategies}
    for turn in range(-(-steps // TURN)):
        for name in sorted(strategies, reverse=turn % 2 == 1):
            make_step(strategies[name], batch)
            for _ in range(TURN):
                began = time.thread_time()
                make_step(strategies[name], batch)
                times[name].append(time.thread_time() - began)
                look(name)
    return times


def check_sequential(model: ModelName) -> Times:
    strategies = {"step, checked": Replicas(RunGroup()), "step, unchecked": Unchecked(RunGroup())}
    for strategy in strategies.values():
        strategy.prepare(build_model(model, seed=0), RULE)
    alone: Times = {"check": [], "squares": []}
    ways = {"check": Replicas.gradients_are_finite, "squares": Replicas.gradient_square}

    def look(name: str) -> None:
        if name == "step, unchecked":
            kind = "squares" if len(alone["check"]) > len(alone["squares"]) else "check"
            began = time.thread_time()
            ways[kind](strategies[name])
            alone[kind].append(time.thread_time() - began)

    return {**in_turns(strategies, random_batch(1), STEPS[model], look), **alone}


def check_shared(model: ModelName) -> Times:
    strategies: dict[str, Shared] = {}
    for name, join in {"checked": JOIN, "unchecked": join_unguarded}.items():
        with (
            mock.patch("phalanx.parallel.shared.FusedOptimizerStep", TimedStep),
            mock.patch.object(FlatGradBuffer, "join", join),
        ):
            world = World.create(timeout_s=60)
            strategies[name] = Shared(world)
            strategies[name].prepare(build_model(model, seed=0), RULE)
            step = strategies[name]._step
            assert isinstance(step, TimedStep)
            step.world = world
    worked: Times = {name: [] for name in strategies}

    def look(name: str) -> None:
        step = strategies[name]._step
        assert isinstance(step, TimedStep)
        worked[name].append(step.worked_s)

    in_turns(strategies, random_batch(2), STEPS[model], look)
    for strategy in strategies.values():
        strategy.close()
    return {f"fused step, {name}": values for name, values in worked.items()}


def rank_main(folder: Path) -> None:
    torch.set_num_threads(1)
    found = {model: check_shared(model) for model in STEPS}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(found))


def on_two_ranks() -> dict[ModelName, Times]:
    ranks = list(run_ranks(__file__, 2, timeout_s=300).values())
    return {
        model: {
            kind: [value for rank in ranks for value in rank[model][kind]]
            for kind in ranks[0][model]
        }
        for model in STEPS
    }


def measured(model: ModelName, alone: Times, shared: Times) -> dict[str, float]:
    """Return seconds of a step and of each way to check, and their shares of the step."""
    median = {kind: statistics.median(times) for kind, times in {**alone, **shared}.items()}
    step_s = median["step, unchecked"]
    ways = {
        "shared": median["fused step, checked"] - median["fused step, unchecked"],
        "sequential": median["check"],
        "squares": median["squares"],
    }
    print(
        f"{model}: step {step_s * 1e3:.3f} ms; looking through the gradients takes "
        + ", ".join(f"{way} {s * 1e6:.1f} µs ({s / step_s:.2%})" for way, s in ways.items())
    )
    return {
        "step_s": step_s,
        **{f"{way}_s": seconds for way, seconds in ways.items()},
        **{f"{way}_share": seconds / step_s for way, seconds in ways.items()},
    }


def main() -> None:
    torch.set_num_threads(1)
    alone, shared = {model: check_sequential(model) for model in STEPS}, on_two_ranks()
    save(
        __file__,
        models={model: measured(model, alone[model], shared[model]) for model in STEPS},
        quartiles_s={
            model: {
                kind: statistics.quantiles(times, n=4)
                for kind, times in {**alone[model], **shared[model]}.items()
            }
            for model in STEPS
        },
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]))
    else:
        main()
