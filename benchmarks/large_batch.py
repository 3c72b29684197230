"""Does a large batch reach the accuracy of a small one on MNIST, by which remedy, with 5 seeds?

    python benchmarks/large_batch.py [--folder runs/large-batch] [--seeds 0 1 2 3 4]

Runs `phalanx study large-batch --epochs 20` on batches of 128, 4,096, 8,192 and 16,384, one compute
thread a run, the seeds dealt out to as many studies at a time as there are cores: accuracy does not
depend on what else the machine does. Needs MNIST (`phalanx data` tells where it is looked for) and
about half an hour on two quiet cores. Given again it goes on where it stopped. Each study has its
page in its folder; what all seeds together show goes to benchmarks/results/large_batch.json, and to
the report of `--folder`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from phalanx.jobs.record import describe_environment
from phalanx.launch.cores import usable_cores
from phalanx.records.files import read_study, write_atomically, write_record
from phalanx.report.large_batch.accuracy_comparison import largest_holding_by_remedy
from phalanx.report.large_batch.findings import findings, headline
from phalanx.report.large_batch.study_data import BatchCell, LargeBatchStudyData, read_study_data
from phalanx.report.page import write_report

RESULTS = Path(__file__).parent / "results" / "large_batch.json"
BATCH_SIZES = ("128", "4096", "8192", "16384")
EPOCHS = "20"


def start(
    folder: Path, seeds: Sequence[int], batch_sizes: Sequence[str], extra: Sequence[str]
) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "phalanx", "study", "large-batch", "--dataset", "mnist"]
    words += ["--batch-sizes", *batch_sizes, "--epochs", EPOCHS, "--study-dir", str(folder)]
    return subprocess.Popen([*words, "--seeds", *map(str, seeds), *extra])


def joined(folder: Path, parts: Sequence[Path]) -> LargeBatchStudyData:
    """One study of the runs of all, which are linked into its folder."""
    studies = [read_study(part) for part in parts]
    names = []
    for part, study in zip(parts, studies, strict=True):
        for name in study.runs:
            link = folder / name
            if (part / name).exists() and not link.exists():
                link.symlink_to((part / name).resolve())
            names.append(name)
    command = "python benchmarks/large_batch.py"
    write_record(folder, msgspec.structs.replace(studies[0], command=command, runs=names))
    return read_study_data(folder)


def record_of(data: LargeBatchStudyData, cell: BatchCell) -> dict[str, object]:
    reached = data.time_to_target(cell)
    return {
        "remedy": cell.remedy,
        "batch_size": cell.batch_size,
        "learning_rate": cell.learning_rate,
        "updates_per_epoch": cell.updates_per_epoch,
        "accuracy_by_seed": {
            str(run.setting.seed): run.trained[-1].validation_accuracy
            for run in cell.runs
            if run.setting
        },
        "accuracy": cell.accuracy.mean if cell.accuracy else None,
        "gap": cell.gap.mean if cell.gap else None,
        "diverged": [run.error for run in cell.diverged],
        "epochs_to_target": reached.epochs,
        "seeds_that_reached_it": reached.num_reached,
        "train_loss_by_epoch": [
            [epoch.train_loss for epoch in run.trained] for run in (*cell.runs, *cell.diverged)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("runs/large-batch"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--batch-sizes", nargs="+", default=BATCH_SIZES)
    options, extra = parser.parse_known_args()  # the study's own, such as --remedies
    at_a_time = min(usable_cores(), len(options.seeds))
    parts = {options.folder / f"part-{n}": options.seeds[n::at_a_time] for n in range(at_a_time)}
    options.folder.mkdir(parents=True, exist_ok=True)
    jobs = [start(part, seeds, options.batch_sizes, extra) for part, seeds in parts.items()]
    codes = [job.wait() for job in jobs]
    if any(codes):
        sys.exit("some runs failed; give the command again")
    data = joined(options.folder, list(parts))
    document = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python benchmarks/large_batch.py", *sys.argv[1:]]),
        "environment": msgspec.to_builtins(describe_environment(None)),
        "headline": headline(data),
        "target_accuracy": data.target,
        "furthest": {cell.remedy: cell.batch_size for cell in largest_holding_by_remedy(data)},
        "findings": {
            topic.title: [f"{s.label}: {s.text}" for s in topic.sentences]
            for topic in findings(data)
        },
        "cells": [record_of(data, cell) for cell in data.cells],
    }
    write_atomically(RESULTS, json.dumps(document, indent=1).encode())
    print(f"{headline(data)}\n{write_report(options.folder)}\n{RESULTS}")


if __name__ == "__main__":
    main()
