"""Each rank trains on its share of every batch; the parameters must be those of one process."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 5, 12


def train(model: nn.Module, share: slice) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        images = torch.randn(BATCH, 20, generator=generator)
        labels = torch.randint(10, (BATCH,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[share]), labels[share]).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def main() -> None:
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 10))
    expected = train(copy.deepcopy(model), slice(0, BATCH))
    own = BATCH // size
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        torch.manual_seed(rank)  # DDP itself must give all ranks the parameters of rank 0
        replica = copy.deepcopy(model)
        if rank:
            nn.init.normal_(replica[0].weight)
        ddp = DistributedDataParallel(replica, gradient_as_bucket_view=True, **options)
        trained = train(ddp, slice(rank * own, (rank + 1) * own))
        for got, right in zip(trained, expected, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-6)
        sums = [None] * size
        dist.all_gather_object(sums, [parameter.double().sum().item() for parameter in trained])
        assert all(each == sums[0] for each in sums), "replicas differ"
    dist.destroy_process_group()
    print(f"rank {rank} of {size} is done", flush=True)


main()
