"""`phalanx bench collectives` for the record: all-reduce by every path, in turn, in one run.

    python benchmarks/all_reduce.py            # measure with this environment's MPI; two minutes
    python benchmarks/all_reduce.py FOLDER     # take what `make bench-collectives` has measured

Prints, for every MPI that was measured, the fastest path of Phalanx against the fastest of the
others at each size. Raw times of every call, what the machine itself can do, commit and machine go
to benchmarks/results/all_reduce.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from phalanx.records.files import write_atomically
from phalanx.report.collectives.comparison import (
    CollectiveResults,
    collective_results,
    path_comparisons,
)
from phalanx.report.collectives.folder import read_benches
from phalanx.report.findings import finding_text

OPTIONS = (
    *("--collectives", "all_reduce", "--ranks", "2", "--repeats", "100"),
    # Powers of four, the gradients of the three models, DDP's own bucket, and a large model.
    *("--sizes", "4,16,64,256,1KB,4KB,16KB,64KB,328744,940584,1MB,1686568,4MB,16MB,25MB,100MB"),
)
FROM_FOLDER = "make bench-collectives; python benchmarks/all_reduce.py FOLDER"
RESULTS = Path(__file__).parent / "results" / "all_reduce.json"


def measure() -> Path:
    """A new folder of records."""
    folder = Path("runs") / "bench" / f"{datetime.now():%Y%m%d-%H%M%S}-benchmark"
    phalanx = Path(sys.executable).with_name("phalanx")
    words = [str(phalanx), "bench", "collectives", *OPTIONS, "--output", str(folder)]
    subprocess.run(words, check=True)
    return folder


def report(results: CollectiveResults) -> None:
    print(f"\n{results.measure.mpi}, {results.ranks} ranks")
    for pair in path_comparisons(results):
        print(f"  {finding_text(pair.finding())}")


def as_result(results: CollectiveResults) -> dict[str, Any]:
    """One run with its raw times, to a tenth of a nanosecond."""
    bench = results.measure.bench
    assert bench is not None, "it has points"
    seconds: dict[str, dict[int, list[float]]] = {}
    for point in results.points:
        times_s = [round(value, 10) for value in point.times_s]
        seconds.setdefault(point.label, {})[point.num_bytes] = times_s
    return {
        "command": bench.command,
        "environment": msgspec.to_builtins(bench.environment),
        "ranks": results.ranks,
        "copy_bytes_per_s": results.measure.machine.copy,
        "flag_round_trip_s": results.measure.machine.round_trip_s,
        "wrong": sum(point.wrong for point in results.points),
        "seconds": seconds,
    }


def main(folder: Path | None) -> None:
    command = "python benchmarks/all_reduce.py" if folder is None else FROM_FOLDER
    found = collective_results(read_benches(folder or measure()))
    found = tuple(results for results in found if results.collective == "all_reduce")
    for results in found:
        report(results)
    document = {
        "command": command,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": [as_result(results) for results in found],
    }
    write_atomically(RESULTS, json.dumps(document).encode())
    print(f"\nraw times: {RESULTS}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
