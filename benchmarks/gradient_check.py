"""What it costs that gradients are looked through in every step, of a step's time.

    python benchmarks/gradient_check.py [--steps 200]    # about a minute; needs a quiet machine

One process, one compute thread: the same model trains with the check and without it, in turns of a
few steps, batch 128 of random images. The median step of each and the share of the check, timed by
itself on the gradients of a step as well, go to benchmarks/results/gradient_check.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch

from phalanx.comm.update import UpdateRule
from phalanx.models.build import build_model
from phalanx.models.options import ModelName
from phalanx.parallel.gradients import square_of
from phalanx.parallel.sequential import Sequential
from phalanx.parallel.strategy import Batch
from phalanx.records.files import write_atomically
from phalanx.train.environment import describe_environment

RESULTS = Path(__file__).parent / "results" / "gradient_check.json"
MODELS: tuple[ModelName, ...] = ("mlp", "cnn")
TURN = 10


class Unchecked(Sequential):
    """Applies what comes."""

    def step_optimizer(self) -> None:
        self.optimizer.step()


def made(kind: type[Sequential], model: ModelName) -> Sequential:
    strategy = kind()
    strategy.prepare(build_model(model, seed=0), UpdateRule(name="sgd", learning_rate=0.01))
    return strategy


def timed(strategy: Sequential, batch: Batch) -> float:
    began = time.perf_counter()
    strategy.step(batch)
    return time.perf_counter() - began


def measure(model: ModelName, steps: int) -> dict[str, float]:
    batch = Batch(torch.rand(128, 1, 28, 28), torch.randint(10, (128,)), 128, 128, 0)
    kinds = {"checked": made(Sequential, model), "unchecked": made(Unchecked, model)}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(steps // TURN):
        for name, strategy in kinds.items():
            strategy.step(batch)
            times[name] += [timed(strategy, batch) for _ in range(TURN)]
    checks = []
    strategy = kinds["checked"]
    total = torch.cat([p.grad.flatten() for p in strategy.model.parameters() if p.grad is not None])
    together = []
    for _ in range(steps):
        strategy.step(batch)
        began = time.perf_counter()
        strategy.gradient_square()
        checks.append(time.perf_counter() - began)
        began = time.perf_counter()
        square_of(total)
        together.append(time.perf_counter() - began)
    step_s = statistics.median(times["unchecked"])
    return {
        "step_s": step_s,
        "checked_step_s": statistics.median(times["checked"]),
        "check_s": statistics.median(checks),
        "check_of_one_vector_s": statistics.median(together),
        "share": statistics.median(checks) / step_s,
        "share_of_one_vector": statistics.median(together) / step_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured = {model: measure(model, options.steps) for model in MODELS}
    for model, found in measured.items():
        print(
            f"{model:8}step {found['step_s'] * 1e3:8.3f} ms, "
            f"check {found['check_s'] * 1e6:6.1f} µs ({found['share']:.2%}), "
            f"of one vector {found['check_of_one_vector_s'] * 1e6:6.1f} µs "
            f"({found['share_of_one_vector']:.2%})"
        )
    document = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(describe_environment(None)),
        "models": measured,
    }
    write_atomically(RESULTS, json.dumps(document, indent=1).encode())


if __name__ == "__main__":
    main()
