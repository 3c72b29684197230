"""Each rank: a tensor without memory is refused before its sum counts; the next sum is right."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode


class NoAddress(Tensor):
    """A wrapper that refuses to tell where its elements lie."""

    def data_ptr(self) -> int:
        raise RuntimeError("cannot access the data pointer")


dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
group = dist.group.WORLD
with FakeTensorMode():
    fake = torch.empty(3)
for wrapper in (fake, torch.ones(3).as_subclass(NoAddress)):
    options = dist.AllreduceOptions()
    options.asyncOp = False
    before = group._engine.sequence
    try:
        group.allreduce([wrapper], options)
    except (RuntimeError, TypeError) as error:
        assert "memory" in str(error) or "pointer" in str(error), error
    else:
        raise AssertionError(type(wrapper))
    assert group._engine.sequence == before
    total = torch.full((3,), float(rank))
    dist.all_reduce(total)
    assert total.tolist() == [sum(range(size))] * 3
print(f"\nrank {rank} of {size} is done", flush=True)
dist.destroy_process_group()
