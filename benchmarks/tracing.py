"""What it costs to time steps, to record and trace them, and to note every collective.

    python benchmarks/tracing.py [--seconds 50]     # of steps, for each of two strategies

On two ranks of one node, one thread each, in blocks of five steps, mixed by chance in one run,
so that what else the machine does hits all alike:

    plain      the steps of a strategy: batch, learning rate, forward, backward, the others, update,
               right predictions counted; nothing looks at the clock
    timed      with the looks at the clock that tell the parts of a step
    recorded   the loop of every run, which leaves a record of each step
    traced     the same with --trace: a span of every collective and every wait

The model is the MLP with a global batch of 128, under `mpi` and `shared`: the shortest steps that
anybody trains with, for which any cost is the largest part. And of `Group.all_reduce` of four
bytes, the fastest collective there is, with and without the notes that the recorder of the last
collectives keeps.

A round is a block of each mode, in an order by chance. Reported: the median over the rounds of the
ratio of a mode's steps to another's, with its 95 % interval (bootstrap over the rounds). Beside it,
since it tells little where others use the cores: how much more processor time rank 0 takes beside
the strategy's own, which is what keeping and recording cost but for the looks at the clock and the
spans within a step. Records are made and written twice a second, which no median shows: that is
added up, as processor time a step. Commit, machine and medians of some rounds in a row go to
benchmarks/results/tracing.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tracing_ranks import Measured, Times

from phalanx.jobs.record import describe_environment
from phalanx.launch.command import mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import find_mpi
from phalanx.launch.job import Job
from phalanx.records.files import write_atomically

SECONDS = 50.0
RESAMPLES, KEPT_ROUNDS = 2000, 50
RESULTS = Path(__file__).parent / "results" / "tracing.json"
PAIRS = [
    ("timed", "plain"),
    ("recorded", "timed"),
    ("recorded", "plain"),
    ("traced", "recorded"),
    ("traced", "plain"),
]


def interval(values: Sequence[float]) -> list[float]:
    """The median, between the ends of its 95 % interval."""
    array = np.array(values)
    generator = np.random.default_rng(0)
    medians = [np.median(generator.choice(array, len(array))) for _ in range(RESAMPLES)]
    low, high = np.quantile(medians, [0.025, 0.975])
    return [float(low), float(np.median(array)), float(high)]


def ratio(times: Times, mode: str, other: str) -> list[float]:
    return interval([a / b for a, b in zip(times[mode], times[other], strict=True)])


def difference(times: Times, mode: str, other: str) -> list[float]:
    return interval([a - b for a, b in zip(times[mode], times[other], strict=True)])


def report_calls(times: Times) -> dict[str, list[float]]:
    low, middle, high = found = ratio(times, "noted", "unnoted")
    took_s = statistics.median(times["unnoted"])
    print(f"all_reduce of 4 bytes: {1e6 * took_s:.3f} µs unnoted")
    print(f"  noted of unnoted     {middle:.4f} [{low:.4f} {high:.4f}]")
    return {"noted of unnoted": found}


def report_steps(strategy: str, measured: Measured) -> dict[str, Any]:
    step_s, beside_s = measured["step"], measured["beside"]
    plain_s = statistics.median(step_s["plain"])
    print(f"{strategy}: {1e3 * plain_s:.3f} ms a plain step, {len(step_s['plain'])} rounds")
    ratios, differences = {}, {}
    for mode, other in PAIRS:
        pair = f"{mode} of {other}"
        low, middle, high = ratios[pair] = ratio(step_s, mode, other)
        text = f"  {pair:20} {middle:.4f} [{low:.4f} {high:.4f}]"
        low, middle, high = (1e6 * x for x in difference(beside_s, mode, other))
        differences[pair] = [low, middle, high]
        print(f"{text}   beside the steps {middle:+6.2f} µs [{low:+.2f} {high:+.2f}] of processor")
    later_s = measured["later"]
    print(f"  written later        {1e6 * later_s:.2f} µs a step, {later_s / plain_s:.2%} of plain")
    return {"ratios": ratios, "beside_us": differences, "written_later_us": 1e6 * later_s}


def thinned(times: Times) -> Times:
    """Medians of so many rounds in a row that few are left."""
    number = -(-len(next(iter(times.values()))) // KEPT_ROUNDS)
    return {
        mode: [
            float(f"{statistics.median(values[start : start + number]):.4g}")
            for start in range(0, len(values), number)
        ]
        for mode, values in times.items()
    }


def main(seconds: float) -> None:
    mpi = find_mpi(os.environ)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = Path(__file__).with_name("tracing_ranks.py")
        words = [sys.executable, str(program), str(folder), str(seconds)]
        command = mpi_job(mpi, 2, words, cores=usable_cores(), environ=os.environ)
        with Job.start([command], folder / "log") as job:
            if job.wait(600):
                sys.exit((folder / "log").read_text())
        measured = json.loads((folder / "measured.json").read_text())
    found = {"calls": report_calls(measured["calls"])}
    found |= {name: report_steps(name, measured[name]) for name in ("mpi", "shared")}
    if seconds < SECONDS:
        print("too short to be kept")
        return
    document = {
        "command": "python benchmarks/tracing.py",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(describe_environment(str(mpi))),
        "found": found,
        "seconds_by_round": {
            "calls": thinned(measured["calls"]),
            "mpi": thinned(measured["mpi"]["step"]),
            "shared": thinned(measured["shared"]["step"]),
        },
    }
    write_atomically(RESULTS, json.dumps(document, indent=1).encode())
    print(f"medians of the rounds: {RESULTS}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each strategy")
    main(parser.parse_args().seconds)
