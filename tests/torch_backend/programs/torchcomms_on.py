"""Each rank: groups of backend mpi, and Gloo beside them, where torchcomms takes every backend."""

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh


def total(group: dist.ProcessGroup | None = None) -> float:
    tensor = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


assert c10d._use_torchcomms_enabled(), "the stub is not what PyTorch takes for torchcomms"
dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
assert total() == sum(range(1, size + 1))
some = dist.new_group([1, 2])
assert rank not in (1, 2) or total(some) == 5
assert total(dist.new_group(backend="gloo")) == total()
part = dist.split_group(split_ranks=[[0, 2], [1]])
assert total(part) == (2 if rank == 1 else 4)
mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("replica", "shard"))
assert total(mesh.get_group("replica")) == total()
received = [torch.zeros(1) for _ in range(size)]
dist.gather(torch.full((1,), float(rank)), received if rank == 0 else None)
assert rank or [tensor.item() for tensor in received] == list(range(size))
dist.destroy_process_group()
assert c10d._use_torchcomms_enabled(), "it is left as it was"
print(f"rank {rank} of {size} is done", flush=True)
