"""Plans of users' programs and the measured times: calibrations and runs on two ranks in turn.

    python benchmarks/plan_programs.py [--rounds 9] [NAME ...]      # a minute per round and program

NAME: a program of examples/ports. A calibration has no step of ranks that communicate. The cases go
to runs/benchmarks/plan_programs.json, which `phalanx plan --validate --here` reads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from harness import median_range, save
from phalanx.bench.plan_validation import case_result
from phalanx.plan.measured_rows import median_step_s
from phalanx.plan.validation import CaseResult
from phalanx.records.plan import Plan

FOLDER = Path(__file__).parents[1] / "examples" / "ports"
RANKS = 2
CASE = "programs, shared memory"


def run(*words: str, folder: Path) -> str:
    """Return what a command prints, or exit with its output if it fails."""
    command = [sys.executable, "-m", "phalanx", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def measure(program: Path, rounds: int) -> CaseResult:
    """Return the program's case, from medians over the rounds."""
    plans, measured = list[Plan](), list[float]()
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            said = run("plan", str(program), "--ranks", f"1,{RANKS}", "--json", folder=folder)
            plans.append(msgspec.json.decode(said, type=Plan))
            run("launch", "-n", str(RANKS), "--log-dir", "run", str(program), folder=folder)
            measured.append(median_step_s(folder / "run", RANKS))
        step = plans[-1].rows[-1].step_s
        print(f"{program.stem} {number}: {1e3 * measured[-1]:.4g} ms, plan {1e3 * step.median:.4g}")
    alone_s = statistics.median(plan.rows[0].step_s.median for plan in plans)
    told = median_range([plan.rows[-1].step_s for plan in plans])
    return case_result(program.stem, CASE, told, measured, alone_s / RANKS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("names", nargs="*", default=["mnist", "gpt"], metavar="NAME")
    args = parser.parse_args()
    cases = [measure(FOLDER / f"{name}.py", args.rounds) for name in args.names]
    save(__file__, here=json.loads(msgspec.json.encode(cases)))


if __name__ == "__main__":
    main()
