"""An all-reduce of a device's tensor through host memory: whole, and in parts that overlap.

    python benchmarks/staging.py                       # 64 MiB on two ranks, some rates of copies
    python benchmarks/staging.py --rates 500 --mib 32

It runs on the emulated accelerator of tests/device, whose copies take a set time. Both are measured
in the same processes, in turn, beside a copy and a sum in host memory alone. Medians are printed;
all times go to runs/benchmarks/staging.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness import run_ranks, save

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.device import emulated

RANKS, REPEATS, WARM_UP = 2, 9, 2
DEFAULT_RATES = [100, 200, 400, 800]
Times = dict[str, list[float]]


def measure(mib: int) -> tuple[int, Times]:
    """Return this rank, and the seconds of its calls."""
    device = emulated.use("vexa")
    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    group: Any = dist.group.WORLD
    group = group._get_backend(torch.device("cpu"))
    on_device = torch.ones(mib * 2**18, device=device)
    pinned = torch.ones(mib * 2**18, pin_memory=True)

    def all_reduce(tensor: torch.Tensor, *, in_parts: bool) -> Callable[[], object]:
        def call() -> None:
            group._context.stages_in_parts = in_parts
            dist.all_reduce(tensor)
            torch.accelerator.synchronize()

        return call

    def copy() -> None:
        pinned.copy_(on_device, non_blocking=True)
        torch.accelerator.synchronize()

    calls = {
        "copy": copy,
        "sum": all_reduce(pinned, in_parts=False),
        "sum in parts": all_reduce(pinned, in_parts=True),
        "whole": all_reduce(on_device, in_parts=False),
        "in parts": all_reduce(on_device, in_parts=True),
    }
    times: Times = {name: [] for name in calls}
    for number in range(WARM_UP + REPEATS):
        for name, call in calls.items():
            on_device.fill_(1), pinned.fill_(1)
            torch.accelerator.synchronize()
            dist.barrier()
            began = time.perf_counter()
            call()
            if number >= WARM_UP:
                times[name].append(time.perf_counter() - began)
    rank = dist.get_rank()
    dist.destroy_process_group()
    return rank, times


def show(rate: int, times: Times) -> None:
    ms = {name: 1e3 * statistics.median(each) for name, each in times.items()}
    ratio = statistics.median(a / b for a, b in zip(times["whole"], times["in parts"], strict=True))
    longest = max(ms["copy"], ms["sum in parts"])
    print(f"{rate} MB/s:", ", ".join(f"{name} {each:.0f} ms" for name, each in ms.items()))
    print(
        f"  in parts {ratio:.2f} times as fast as whole; copy, sum and copy beside each other, "
        f"which take {longest:.0f} ms, would be {(2 * ms['copy'] + ms['sum']) / longest:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=DEFAULT_RATES, help="MB/s")
    parser.add_argument("--mib", type=int, default=64)
    given = parser.parse_args()
    emulated.build()
    runs = []
    for rate in given.rates:
        os.environ |= {"EMULATED_COPY_MB_PER_S": str(rate), "EMULATED_LAG_US": "0"}
        found = run_ranks(__file__, RANKS, str(given.mib))["found"]
        show(rate, found)
        runs.append({"mb_per_s": rate, "mib": given.mib, **found})
    save(__file__, runs=runs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank, times = measure(int(sys.argv[3]))
        if rank == 0:
            Path(sys.argv[2], "found.json").write_text(json.dumps(times))
    else:
        main()
