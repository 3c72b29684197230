"""Ports that a rank opens: none for backend mpi alone, the loopback's on one node beside Gloo.

MPI's own are open before. The name of the host leads nowhere.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

socket.gethostname = lambda: "nowhere.invalid"
LOOPBACK = "0100007F"  # in the kernel's digits


def listening() -> set[str]:
    """Addresses, in the kernel's hexadecimal digits, of the sockets of this process."""
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
    return found


MPI.COMM_WORLD.Barrier()
before = listening()
dist.init_process_group("mpi")
tensor = torch.ones(4)
dist.all_reduce(tensor)
assert listening() == before, (before, listening())
asked = r"call dist\.new_group\(backend='gloo'\) on all ranks first"
with pytest.raises(RuntimeError, match=asked):  # it is not open, as nobody asked for it
    dist.distributed_c10d._get_default_store().get("key")
for _ in range(2):
    group = dist.new_group(backend="gloo")
    dist.all_reduce(tensor, group=group)
opened = listening() - before
assert opened, "Gloo listens"
hosts = {address.partition(":")[0] for address in opened}
assert "00000000" not in hosts, "listens on all interfaces"
assert hosts == {LOOPBACK} or "PHALANX_LINK" in os.environ, opened
assert "GLOO_SOCKET_IFNAME" not in os.environ, "what the program starts chooses by itself"
store = dist.distributed_c10d._get_default_store()
store.set(f"key {dist.get_rank()}", "value")
assert store.get(f"key {dist.get_world_size() - 1}") == b"value"
dist.barrier()
rank, size = dist.get_rank(), dist.get_world_size()
dist.destroy_process_group()
print(f"rank {rank} of {size} is done", flush=True)
