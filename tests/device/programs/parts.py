"""Each rank: collectives that go in parts have the bits of those that go whole, whatever the
tensors lie on. Argument: cpu, cuda, the name of an emulated device, or "mixed".
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.device.emulated import use
from torch import Tensor

from phalanx.torch_backend import call_context, process_group

DEVICE = use(sys.argv[1])
call_context.PART_BYTES = process_group.PART_BYTES = 2**12
COUNT = 7 * 1024 + 3
Op = dist.ReduceOp


def scaled(factor: float | Tensor) -> Callable[[Tensor], object]:
    return lambda tensor: dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))


CALLS: dict[str, Callable[[Tensor], object]] = {
    "sum": dist.all_reduce,
    "mean": lambda tensor: dist.all_reduce(tensor, Op.AVG),
    "scaled": scaled(0.3),
    "asynchronous": lambda tensor: dist.all_reduce(tensor, async_op=True).wait(),
    "reduce": lambda tensor: dist.reduce(tensor, 1),
    "broadcast": lambda tensor: dist.broadcast(tensor, 1),
}


def main() -> None:
    dist.init_process_group("mpi")
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    context: Any = group._context  # type: ignore[union-attr]
    assert context.stages_in_parts == (sys.argv[1] != "cpu")
    called: list[int] = []
    parts_of = context.parts
    context.parts = lambda *given: [called.append(len(found := parts_of(*given))), found][1]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        torch.manual_seed(rank)
        values = torch.randn(COUNT, 2).to(dtype)
        for name, call in CALLS.items():
            for given in (values, values.t().contiguous().t(), values[:1], values[:0]):
                found = []
                for in_parts in (context.stages_in_parts, False):
                    context.stages_in_parts = in_parts
                    tensor = torch.empty_like(given, device=DEVICE).copy_(given)
                    assert tensor.stride() == given.stride()
                    call(tensor)
                    found.append(tensor.cpu())
                context.stages_in_parts = sys.argv[1] != "cpu"
                assert torch.equal(*found), f"{name} of {dtype}, {tuple(given.shape)}"
    assert max(called) == (1 if sys.argv[1] == "cpu" else 15), max(called)
    check_mismatch()
    dist.destroy_process_group()
    print(f"rank {rank} of {size} is done", flush=True)


def check_mismatch() -> None:
    """One of the ranks says what the whole call is; the others may hear that it has failed."""
    another = dist.new_group()
    try:
        dist.all_reduce(torch.ones(COUNT + dist.get_rank(), device=DEVICE), group=another)
    except dist.DistBackendError as error:
        print(error, flush=True)
    else:
        raise AssertionError("a mismatch")


main()
