"""Horovod's collectives and shared state, checked by every rank."""

import os
import sys

import torch

import phalanx.horovod as hvd

assert not hvd.is_initialized()
hvd.init()
hvd.init()
rank, size = hvd.rank(), hvd.size()
places = [(hvd.local_rank(), hvd.local_size()), (hvd.cross_rank(), hvd.cross_size())]
if "PHALANX_LINK" in os.environ:  # every rank is a node of its own
    places.reverse()
assert places == [(rank, size), (0, 1)] and hvd.is_homogeneous()
assert hvd.mpi_built() and not hvd.nccl_built() and hvd.mpi_threads_supported()
total = sum(range(size))

own = torch.full((3,), float(rank), dtype=torch.float64)
assert hvd.allreduce(own, name="mean").tolist() == [total / size] * 3
assert hvd.allreduce(own, op=hvd.Sum, prescale_factor=2, postscale_factor=3).sum() == 18 * total
assert own.tolist() == [rank] * 3
assert hvd.allreduce(torch.tensor(rank), op=hvd.Max).item() == size - 1
assert hvd.allreduce(torch.tensor(rank + 1), op=hvd.Min).item() == 1
assert hvd.allreduce(torch.tensor(2.0), op=hvd.Product).item() == 2.0**size
halved = hvd.allreduce(own, compression=hvd.Compression.fp16)
assert halved.dtype == torch.float64 and halved[0] == total / size
strided = torch.full((4, 2), float(rank)).T
assert hvd.allreduce_(strided, op=hvd.Sum) is strided and strided[1, 3] == total
handles = [hvd.allreduce_async(own + number, op=hvd.Sum) for number in range(5)]
for number, handle in enumerate(handles):
    assert hvd.synchronize(handle)[0] == total + number * size
    assert hvd.poll(handle)
both = hvd.grouped_allreduce([own, own + 1])
assert both[1][0] == total / size + 1
handle = hvd.grouped_allreduce_async_([own.clone(), torch.tensor(rank)], op=hvd.Sum)
assert [int(tensor.sum()) for tensor in hvd.synchronize(handle)] == [3 * total, total]
assert hvd.allreduce(torch.tensor(3), op=hvd.Sum, prescale_factor=0.5) == size, "3 / 2 is 1"
assert hvd.allreduce(torch.tensor(3.0).half(), postscale_factor=0.5) == 1.5
for dtype in (torch.int32, torch.int64, torch.float32, torch.float64, torch.float16):
    wide = {torch.float32: dtype, torch.float16: torch.float32}.get(dtype, torch.float64)
    whole = torch.arange(-100, 100).to(dtype)
    scaled = (torch.tensor(0.1915, dtype=wide) * whole.to(wide)).to(dtype)
    found = hvd.allreduce(whole, op=hvd.Sum, prescale_factor=0.1915)
    assert torch.equal(found, (scaled.to(wide) * size).to(dtype)), "scaled, summed, rounded once"

rows = torch.full((rank + 1, 2), float(rank))
joined = hvd.allgather(rows, name="rows")
assert joined[:, 0].tolist() == [r for r in range(size) for _ in range(r + 1)]
gathered = hvd.grouped_allgather([rows, rows + 1])
assert torch.equal(gathered[1], joined + 1)
assert hvd.allgather_object({"rank": rank}) == [{"rank": r} for r in range(size)]
assert hvd.broadcast(own, root_rank=size - 1).tolist() == [size - 1] * 3
assert own.tolist() == [rank] * 3
assert hvd.broadcast_object(f"of {rank}", root_rank=size - 1) == f"of {size - 1}"
assert hvd.broadcast_object(("any", rank)) == ("any", 0)
hvd.barrier()

# Gradients, as Horovod defines them.
x = torch.full((2,), 1.0 + rank, requires_grad=True)
(hvd.allreduce(x, op=hvd.Sum) * (rank + 1)).sum().backward()
assert x.grad is not None and x.grad.tolist() == [total + size] * 2
y = rows.clone().requires_grad_()
(hvd.allgather(y) * (rank + 1)).sum().backward()
assert y.grad is not None and torch.equal(y.grad, torch.full_like(y, (total + size) / size))
z = torch.ones(2, requires_grad=True)
(hvd.broadcast(z, 0) * (rank + 1)).sum().backward()
assert z.grad is not None
assert z.grad.tolist() == [(total + size) / size if rank == 0 else 0] * 2

# Parameters and optimizer state of the last rank.
torch.manual_seed(rank)
root = size - 1
model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1), weight_decay=0.01)
if rank == root:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
hvd.broadcast_parameters(model.state_dict(), root_rank=root)
hvd.broadcast_parameters(model.named_parameters(), root_rank=root)
hvd.broadcast_optimizer_state(optimizer, root_rank=root)
assert optimizer.param_groups[0]["lr"] == 0.1 * size
seen = hvd.allgather_object((model.state_dict(), optimizer.state_dict()["state"]))
for tensors, state in seen:
    assert all(torch.equal(tensors[name], value) for name, value in seen[root][0].items())
    assert [state[n]["step"] for n in range(4)] == [3] * 4
    assert all(torch.equal(state[n]["exp_avg"], seen[root][1][n]["exp_avg"]) for n in range(4))

hvd.shutdown()
assert not hvd.is_initialized()
hvd.init()
assert hvd.allreduce(torch.tensor(1.0), op=hvd.Sum) == size
if "--no-shutdown" not in sys.argv:
    hvd.shutdown()
print(f"\nrank {rank} of {size} is done", flush=True)
