"""A program for ranks that tries how tensors of a device travel: sums on backend mpi, and a copy.

Rank 0 prints a JSON object before the first sum, and another one after the last: between the two an
MPI that gets addresses of a device may crash. `mpiexec -n 2 python -m
phalanx.torch_backend.device_probe`
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from phalanx.jobs.orphan import end_with_parent
from phalanx.torch_backend.process_group import ProcessGroupMPI

NUM_BYTES, REPEATS = 16 * 2**20, 5


def main() -> None:
    """Run the probe on each rank."""
    end_with_parent()
    torch.set_num_threads(1)
    kind = torch.accelerator.current_accelerator(check_available=True)
    assert kind is not None, "called where PyTorch sees a device"
    dist.init_process_group("mpi")
    group = dist.distributed_c10d._get_default_group()
    assert isinstance(group, ProcessGroupMPI)
    rank, size = group.rank(), group.size()
    index = rank % torch.accelerator.device_count()
    torch.accelerator.set_device_index(index)
    device = torch.device(kind.type, index)
    found = {
        "world_size": size,
        "device": str(device),
        "path": group.path_of(device),
        "nccl": kind.type == "cuda" and dist.is_nccl_available(),
    }
    show(rank, found)
    tensor = torch.empty(NUM_BYTES // 4, device=device)
    host = torch.empty(NUM_BYTES // 4, pin_memory=True)
    wrong = 0

    def begin() -> None:
        tensor.fill_(rank + 1)
        torch.accelerator.synchronize()
        dist.barrier()

    sums, copies = [], []
    for _ in range(REPEATS):
        begin()
        sums.append(seconds_of(lambda: dist.all_reduce(tensor)))
        wrong += int((tensor != size * (size + 1) / 2).sum())
        copies.append(seconds_of(lambda: host.copy_(tensor, non_blocking=True)))
    rates = {"sum": sums, "copy": copies}
    by_name = {f"{name}_bytes_per_s": rate_of(times) for name, times in rates.items()}
    show(rank, {**found, "wrong": wrong, **by_name})
    dist.destroy_process_group()


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    torch.accelerator.synchronize()
    return time.perf_counter() - began


def rate_of(times_s: list[float]) -> float:
    """Return bytes per second; the first call is a warm-up."""
    return NUM_BYTES / statistics.median(times_s[1:])


def show(rank: int, found: dict[str, object]) -> None:
    if rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
