"""Plans for nodes with real limited links, and the measured times.

    python benchmarks/plan_links.py [--rounds 9] [--rate 100mbit] [--layouts 2x1 2x2]  # as root

The nodes are virtual, as in benchmarks/nodes.py, and each has a core of its own if there are
enough. `phalanx bench machine --hosts` writes their machine file; in each round a model is
calibrated on the first node, by one rank at a time, and trained over the nodes. The cases go to
runs/benchmarks/plan_links.json, which `phalanx plan --validate --here` reads.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

import msgspec

from harness import median_range, save
from nodes import limited_nodes
from phalanx.bench.plan_validation import case_result
from phalanx.plan.machine import read_machine
from phalanx.plan.measured_rows import median_step_s
from phalanx.plan.predict import Target, plan_ranks
from phalanx.plan.profile import read_profile
from phalanx.plan.validation import CaseResult

MODELS = {"cnn": 40, "rnn": 60, "resnet": 24}
"""Steps of a run, by model."""
BATCH = 128
TIMEOUT_S = 300


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


def measure(nodes: PinnedNodes, folder: Path, layout: str, model: str, rounds: int) -> CaseResult:
    """Return the case of a model on the layout's nodes and ranks, with medians over the rounds."""
    count, local = map(int, layout.split("x"))
    hosts = ",".join(f"n{node}:{local}" for node in range(count))
    file, ranks = folder / f"{layout}.yaml", count * local
    if not file.exists():
        nodes.phalanx("bench", "machine", str(file), "--hosts", hosts, "--sizes", "64KB")
    machine, common = read_machine(str(file)), ("--model", model, "--dataset", "digits")
    steps, alone, measured = [], list[float](), list[float]()
    for number in range(rounds):
        nodes.phalanx("plan", *common, "--ranks", "1", "--machine", str(file))
        place = max((folder / "runs" / "plan").iterdir())
        target = Target(machine=machine, ranks_per_node=local)
        one, planned = plan_ranks(read_profile(place), target, [1, ranks])
        run = folder / f"{layout}-{model}-{number}"
        samples = ("--train-samples", str(BATCH * MODELS[model]), "--validation-samples", "64")
        where = ("--ranks", str(ranks), "--hosts", hosts, "--threads", "1", "--run-dir", str(run))
        nodes.phalanx("train", *common, "--strategy", "mpi", "--epochs", "1", *samples, *where)
        measured.append(median_step_s(run, ranks))
        steps.append(planned.step_s)
        alone.append(one.step_s.median)
        told = f"plan {1e3 * steps[-1].median:.4g}"
        print(f"{layout} {model} {number}: {1e3 * measured[-1]:.4g} ms, {told}", flush=True)
    case, perfect_s = f"links, {layout.replace('x', ' × ')}", statistics.median(alone) / ranks
    return case_result(model, case, median_range(steps), measured, perfect_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--layouts", nargs="+", default=["2x1", "2x2"])
    parser.add_argument("--models", nargs="+", default=[*MODELS])
    args = parser.parse_args()
    with limited_nodes(args.layouts, args.rate, Path(__file__).parent) as cluster:
        nodes = PinnedNodes(cluster, cluster.shared)
        cases = [
            measure(nodes, cluster.shared, layout, model, args.rounds)
            for layout in args.layouts
            for model in args.models
        ]
    save(__file__, here=json.loads(msgspec.json.encode(cases)))


if __name__ == "__main__":
    main()
