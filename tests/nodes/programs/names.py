"""Groups of Gloo and of backend mpi where names of hosts lead nowhere; prints a line a part."""

import os
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from mpi4py import MPI

import phalanx

TIMEOUT = timedelta(seconds=60)
EVERYWHERE = ("00000000", "0" * 32)


def listening_everywhere() -> set[str]:
    """Sockets of this process that listen on all interfaces, in the kernel's digits."""
    own = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            own.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    found = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(fields[1])
    return {address for address in found if address.partition(":")[0] in EVERYWHERE}


def check_sum(part: str, group: dist.ProcessGroup | None = None) -> None:
    values = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(values, group=group)
    expected = sum(range(1, dist.get_world_size() + 1))
    assert values.tolist() == [expected] * 1000
    if dist.get_rank() == 0:
        print(part, "sums", flush=True)


MPI.COMM_WORLD.Barrier()
of_mpi = listening_everywhere()
dist.init_process_group("mpi", timeout=TIMEOUT)
check_sum("mpi")
check_sum("gloo beside mpi", dist.new_group(backend="gloo"))
check_sum("a later group", dist.new_group(backend="gloo"))
assert listening_everywhere() == of_mpi
dist.barrier()
dist.destroy_process_group()

dist.init_process_group("gloo", init_method="mpi://", timeout=TIMEOUT)
check_sum("gloo by mpi://")
assert listening_everywhere() == of_mpi
dist.barrier()
dist.destroy_process_group()

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.ones(16, 4)
run = phalanx.start(
    model, optimizer, data, batch_size=8, epochs=1, strategy="gloo", run_dir=sys.argv[1]
)
for batch in run:
    run.backward(run.model(batch.inputs).square().mean())
assert listening_everywhere() == of_mpi
run.print("phalanx.start trains")
