"""Gain of `--rebalance`: a step of two ranks of which one is slow, with it and without.

    python benchmarks/rebalance.py            # some minutes
    python benchmarks/rebalance.py --quick    # one round

`phalanx train --bitwise --slow-rank 1:SECONDS` with and without `--rebalance`, in turn. Reported:
the median step of the second half of each run, and the ratio of each pair, with the range over the
rounds; how the micro-batches were divided; and whether both have the same SHA-256.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from phalanx.records.events import FinishedEvent, RebalancedEvent, StepEvent
from phalanx.records.files import rank_file, read_events

CASES = (("mlp", 0.2), ("mlp", 0.4))
"""Model, and seconds by which the steps of rank 1 are longer."""
ROUNDS, QUICK_ROUNDS = 3, 1
EPOCHS = 12
MICRO_BATCHES = 16


def train(model: str, delay_s: float, folder: Path, *extra: str) -> tuple[float, list[int], str]:
    """Return the median step of a run's second half, the last division, and the run's hash."""
    options = [
        *("--model", model, "--dataset", "digits", "--epochs", str(EPOCHS), "--strategy", "mpi"),
        *("--ranks", "2", "--bitwise", "--micro-batches", str(MICRO_BATCHES)),
        *("--train-samples", "1280", "--validation-samples", "128"),
        *("--slow-rank", f"1:{delay_s:g}", "--run-dir", str(folder)),
    ]
    command = [sys.executable, "-m", "phalanx", "train", *options, *extra]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    events = list(read_events(rank_file(folder, 0)))
    steps = [event for event in events if isinstance(event, StepEvent)]
    seconds = [
        step.data_s + step.forward_s + step.backward_s + step.communication_s + step.optimizer_s
        for step in steps[len(steps) // 2 :]
    ]
    divided = [event.micro_batches for event in events if isinstance(event, RebalancedEvent)]
    (end,) = (event for event in events if isinstance(event, FinishedEvent))
    assert end.certificate is not None
    even = [MICRO_BATCHES // 2] * 2
    return statistics.median(seconds), (divided or [even])[-1], end.certificate.sha256


def main() -> None:
    rounds = QUICK_ROUNDS if "--quick" in sys.argv[1:] else ROUNDS
    for model, delay_s in CASES:
        ratios = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                as_it_is, _, sha256 = train(model, delay_s, Path(folder) / "even")
                relieved, division, other = train(
                    model, delay_s, Path(folder) / "rebalanced", "--rebalance"
                )
            ratios.append(as_it_is / relieved)
            same = "same SHA-256" if sha256 == other else "OTHER BITS"
            print(
                f"{model}, rank 1 slower by {1e3 * delay_s:g} ms: {1e3 * as_it_is:.1f} ms → "
                f"{1e3 * relieved:.1f} ms, {division}, {same}",
                flush=True,
            )
        middle = statistics.median(ratios)
        print(f"{model}: {middle:.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
