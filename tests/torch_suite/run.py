"""PyTorch's own distributed suite on 3 ranks, on backend mpi and on Gloo, and a table of both.

    python -m tests.torch_suite.run [part of a test's name]

The suite comes with PyTorch's wheel. Ends with an error if a test fails on mpi that
known_failures.yaml does not list, or if one passes that it lists.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import yaml

from phalanx.jobs.command import mpi_job
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.job import Job
from tests.conftest import ONE_THREAD, forking
from tests.torch_suite.verdict import (
    Known,
    Outcome,
    RankOutcome,
    combine,
    first_line,
    make_table,
    unexpected,
)

HERE = Path(__file__).parent
SUITE = "torch.testing._internal.distributed.distributed_test"
BACKENDS = ("mpi", "gloo")
NUM_RANKS = 3
STALLED_S = 150.0
"""Time that a test may take; all but one of the suite's groups time out after 60 s."""


def find_tests(part: str) -> list[str]:
    """Return the names of the suite's tests that have `part` in them."""
    program = (
        f"from {SUITE} import DistributedTest as D; "
        "print(*(name for name in dir(D._DistTestBase) if name.startswith('test_')))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "BACKEND": BACKENDS[0], "WORLD_SIZE": str(NUM_RANKS)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [name for name in found.stdout.split() if part in name]


def read_known() -> dict[str, Known]:
    """Return the known failures of each backend."""
    lists = yaml.safe_load((HERE / "known_failures.yaml").read_text())
    return {backend: Known(lists["unfit"], lists[backend]) for backend in BACKENDS}


def read_ranks(folder: Path, number: int) -> list[RankOutcome]:
    """Return the outcomes of a test that ranks have written."""
    files = [folder / f"{number}.{rank}" for rank in range(NUM_RANKS)]
    return [RankOutcome(*json.loads(file.read_text())) for file in files if file.exists()]


def run_job(
    interpreter: Path, backend: str, tests: Sequence[str], folder: Path
) -> dict[str, Outcome]:
    """Run `tests` in order up to the first that fails, and return the outcomes of those."""
    (folder / "tests").write_text("\n".join(tests))
    words = [str(interpreter), str(HERE / "rank.py"), str(folder)]
    command = mpi_job(find_mpi(os.environ), NUM_RANKS, words, environ=os.environ)
    environment = {**command.environment, **ONE_THREAD, "BACKEND": backend}
    num_done, moved_at = 0, time.monotonic()
    with Job.start([dataclasses.replace(command, environment=environment)], folder / "log") as job:
        while (code := job.wait(0.1)) is None and time.monotonic() - moved_at < STALLED_S:
            while len(read_ranks(folder, num_done)) == NUM_RANKS:
                num_done, moved_at = num_done + 1, time.monotonic()
    outcomes: dict[str, Outcome] = {}
    for number, test in enumerate(tests):
        ranks = read_ranks(folder, number)
        if len(ranks) == NUM_RANKS or any(rank.result == "fail" for rank in ranks):
            outcomes[test] = combine(ranks)
        else:
            outcomes[test] = Outcome("fail", "hangs" if code is None else "its ranks have died")
        if outcomes[test].result == "fail":
            break
    return outcomes


def run_suite(backend: str, tests: Sequence[str]) -> dict[str, Outcome]:
    """Return the outcomes of all `tests`; a job after each that fails has those that are left."""
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="torch-suite-") as name:
        folder = Path(name)
        environment = {"BACKEND": backend, "INIT_METHOD": "file://", "WORLD_SIZE": str(NUM_RANKS)}
        with forking(folder, SUITE, environment=environment) as interpreter:
            while left := tests[len(outcomes) :]:
                job = folder / f"{len(outcomes)}"
                job.mkdir()
                done = run_job(interpreter, backend, left, job)
                outcomes |= done
                print(f"{backend}: {len(outcomes)} of {len(tests)}", end="", file=sys.stderr)
                test, outcome = next(reversed(done.items()))
                failure = f", {test} fails: {first_line(outcome)}"
                print(failure[:100] if outcome.result == "fail" else "", file=sys.stderr)
    return outcomes


def main() -> None:
    tests = find_tests("".join(sys.argv[1:2]))
    known = read_known()
    outcomes = {backend: run_suite(backend, tests) for backend in BACKENDS}
    mpi = find_mpi(os.environ).vendor
    print(f"PyTorch {version('torch')}: its distributed suite on {NUM_RANKS} ranks, {mpi}\n")
    print("\n".join(make_table(outcomes, known)))
    if lines := unexpected(outcomes["mpi"], known["mpi"]):
        sys.exit("\n".join(["", "Unexpected on mpi:", *(f"  {line}" for line in lines)]))


if __name__ == "__main__":
    main()
