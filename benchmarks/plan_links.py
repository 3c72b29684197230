"""Plans for nodes with real limited links, and the measured times.

    python benchmarks/plan_links.py [--rounds 9] [--rate 100mbit] [--layouts 2x1 2x2]  # as root
    python benchmarks/plan_links.py --again FOLDER

The nodes are virtual, as in benchmarks/nodes.py, and each has a core of its own if there are
enough. `phalanx bench machine --hosts` writes their machine file; in each round a model is
calibrated on the first node, by one rank at a time, and trained over the nodes. The cases go to
runs/benchmarks/plan_links.json, which `phalanx plan --validate --here` reads; the rounds are kept
beside it, and predicted anew by --again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from harness import median_range, save
from nodes import ROOT, limited_nodes
from phalanx.bench.plan_validation import case_result
from phalanx.plan.machine import read_machine
from phalanx.plan.measured_rows import median_step_s
from phalanx.plan.predict import Target, plan_ranks
from phalanx.plan.profile import PROFILE, read_profile
from phalanx.plan.validation import CaseResult

MODELS = {"cnn": 40, "rnn": 60, "resnet": 24}
"""Steps of a run, by model."""
BATCH = 128
TIMEOUT_S = 300
BUCKET_KB = 16
"""Kilobytes that an emulated limit lets pass at once after a rest, which no real link does."""


class PinnedNodes:
    """Virtual nodes of one core each, and commands on the first."""

    def __init__(self, cluster: Any, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        cores = sorted(os.sched_getaffinity(0))
        self._cores = [str(cores[place % len(cores)]) for place in range(len(cluster.nodes))]
        for node, core in zip(cluster.nodes, self._cores, strict=True):
            pin = f"for each in $(pgrep sshd); do taskset -cp {core} $each; done"
            self._run(node, ["sh", "-c", pin])

    def phalanx(self, *words: str) -> None:
        """Run a command of Phalanx on the first node; exit with its output if it fails."""
        command = shlex.join([sys.executable, "-m", "phalanx", *words])
        line = f"cd {self._folder} && exec taskset -c {self._cores[0]} {command}"
        self._run(self._cluster.nodes[0], ["sh", "-c", line])

    def _run(self, node: str, words: list[str]) -> None:
        variables = {"OMPI_MCA_mpi_yield_when_idle": "1"}  # a core may have several ranks by now
        done = self._cluster.run(node, words, environment=variables, timeout_s=TIMEOUT_S)
        if done.returncode:
            sys.exit(done.stdout)


def measure(nodes: PinnedNodes, folder: Path, layout: str, model: str, rounds: int) -> None:
    """Calibrate a model and train it on the layout's nodes and ranks, so many times each: a folder
    a round, which holds the profile and the records of the run."""
    count, local = map(int, layout.split("x"))
    hosts = ",".join(f"n{node}:{local}" for node in range(count))
    file, ranks = folder / f"{layout}.yaml", count * local
    if not file.exists():
        nodes.phalanx("bench", "machine", str(file), "--hosts", hosts, "--sizes", "64KB")
    common = ("--model", model, "--dataset", "digits")
    for number in range(rounds):
        nodes.phalanx("plan", *common, "--ranks", "1", "--machine", str(file))
        place = max((folder / "runs" / "plan").iterdir())
        run = folder / f"{layout}-{model}-{number}"
        samples = ("--train-samples", str(BATCH * MODELS[model]), "--validation-samples", "64")
        where = ("--ranks", str(ranks), "--hosts", hosts, "--threads", "1", "--run-dir", str(run))
        nodes.phalanx("train", *common, "--strategy", "mpi", "--epochs", "1", *samples, *where)
        shutil.copy(place / PROFILE, run)
        case = predict(folder, layout, [run])
        told = f"plan {1e3 * case.predicted_s:.4g}"
        print(f"{layout} {model} {number}: {1e3 * case.measured_s:.4g} ms, {told}", flush=True)


def predict(folder: Path, layout: str, runs: Sequence[Path]) -> CaseResult:
    """Return the case of a model's rounds on a layout, with medians over them."""
    count, local = map(int, layout.split("x"))
    machine, ranks = read_machine(str(folder / f"{layout}.yaml")), count * local
    target, steps, alone = Target(machine=machine, ranks_per_node=local), [], list[float]()
    for run in runs:
        profile = read_profile(run)
        one, planned = plan_ranks(profile, target, [1, ranks])
        steps.append(planned.step_s)
        alone.append(one.step_s.median)
    case, perfect_s = f"links, {layout.replace('x', ' × ')}", statistics.median(alone) / ranks
    measured = [median_step_s(run, ranks) for run in runs]
    return case_result(profile.model, case, median_range(steps), measured, perfect_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--layouts", nargs="+", default=["2x1", "2x2"])
    parser.add_argument("--models", nargs="+", default=[*MODELS])
    parser.add_argument("--again", type=Path, help="folder of earlier rounds: predict them anew")
    args = parser.parse_args()
    kept = args.again or Path("runs", "benchmarks", f"plan_links-{datetime.now():%Y%m%d-%H%M%S}")
    if args.again is None:
        sys.path.insert(0, str(ROOT))
        with limited_nodes(args.layouts, args.rate, ROOT / "benchmarks", BUCKET_KB) as cluster:
            nodes = PinnedNodes(cluster, cluster.shared)
            for layout in args.layouts:
                for model in args.models:
                    measure(nodes, cluster.shared, layout, model, args.rounds)
                    parts = [f"{layout}.yaml", f"{layout}-{model}-*/*.json*"]
                    for part in (path for each in parts for path in cluster.shared.glob(each)):
                        place = kept / part.relative_to(cluster.shared)
                        place.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(part, place)
    print(f"rounds in {kept}")
    cases = []
    for layout in args.layouts:
        for model in args.models:
            if runs := sorted(kept.glob(f"{layout}-{model}-*")):
                cases.append(predict(kept, layout, runs))
    save(__file__, here=json.loads(msgspec.json.encode(cases)))


if __name__ == "__main__":
    main()
