"""GPU tensors on backend mpi and on Gloo: all-reduce, and the step of a DDP model.

    python benchmarks/gpu.py          # two ranks, which share a GPU if there is one
    python benchmarks/gpu.py --cpu    # on the CPU: does the program run?

Both backends are measured in the same processes, in turn. `phalanx doctor` reports whether MPI gets
GPU memory directly or a copy in host memory. Medians are printed; all times go to
runs/benchmarks/gpu.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness import run_ranks, save

RANKS = 2
SIZES = {"4 KB": 4 * 1024, "1 MB": 2**20, "64 MB": 64 * 2**20}
REPEATS = {"4 KB": 40, "1 MB": 40, "64 MB": 9}
WIDTH, LAYERS, ROWS, STEPS = 2500, 4, 256, 9
WARM_UP = 3
Calls = Mapping[str, Callable[[], object]]
Times = dict[str, list[float]]


def measure(device: torch.device) -> dict[str, Any] | None:
    """Measure on this rank; return all times on rank 0."""
    dist.init_process_group("mpi")
    groups = {"mpi": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    found = {
        "device": "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "ranks": dist.get_world_size(),
        "all_reduce": {
            size: in_turns(all_reduces(groups, device, num_bytes), REPEATS[size])
            for size, num_bytes in SIZES.items()
        },
        "step": in_turns(steps(groups, device), STEPS),
    }
    is_first = dist.get_rank() == 0
    dist.destroy_process_group()
    return found if is_first else None


def all_reduces(groups: Mapping[str, Any], device: torch.device, num_bytes: int) -> Calls:
    """Return an all-reduce of float32 values for each group."""
    given = torch.ones(num_bytes // 4, device=device)

    def call_of(group: Any) -> Callable[[], object]:
        def call() -> None:
            given.fill_(1.0)
            dist.all_reduce(given, group=group)

        return call

    return {name: call_of(group) for name, group in groups.items()}


def steps(groups: Mapping[str, Any], device: torch.device) -> Calls:
    """Return a training step for each group, and one without sums."""
    inputs = torch.randn(ROWS, WIDTH, device=device)

    def step_of(group: Any) -> Callable[[], object]:
        torch.manual_seed(1)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
        model: nn.Module = nn.Sequential(*layers).to(device)
        if group is not None:
            model = DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step() -> None:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

        return step

    return {name: step_of(group) for name, group in {**groups, "no sum": None}.items()}


def in_turns(calls: Calls, repeats: int) -> Times:
    """Return seconds of each call, which follows a barrier."""
    times: Times = {name: [] for name in calls}
    for number in range(WARM_UP + repeats):
        for name, call in calls.items():
            finish()
            dist.barrier()
            began = time.perf_counter()
            call()
            finish()
            if number >= WARM_UP:
                times[name].append(time.perf_counter() - began)
    return times


def finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def rank_main(folder: Path, *, on_cpu: bool) -> None:
    device = torch.device("cpu") if on_cpu else torch.device("cuda", 0)
    if (found := measure(device)) is not None:
        (folder / "found.json").write_text(json.dumps(found))


def show(found: dict[str, Any]) -> None:
    print(f"{found['device']}, PyTorch {found['torch']}, {found['ranks']} ranks; median ms")
    rows: dict[str, Times] = {**found["all_reduce"], "step": found["step"]}
    for what, times in rows.items():
        medians = [f"{name} {1e3 * statistics.median(each):.3f}" for name, each in times.items()]
        print(f"{what:6s}", *medians, sep="  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="run without a GPU")
    given = parser.parse_args()
    found = run_ranks(__file__, RANKS, *["--cpu"] * given.cpu, timeout_s=600)["found"]
    show(found)
    if not given.cpu:
        save(__file__, runs=[found])


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]), on_cpu="--cpu" in sys.argv)
    else:
        main()
