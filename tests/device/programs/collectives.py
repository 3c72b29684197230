"""Each rank: collectives on tensors of a device against what PyTorch computes of all ranks' values.

A stream sleeps before it writes the inputs, the same or another one reads the outputs at once, and
both are overwritten or dropped after that: a missing wait gives wrong numbers. Ranks may share a
device, and it need not be the current one. Most go through host memory in parts.

Arguments: cuda, cpu or the name of an emulated device; how often every case is repeated; and, as
of mutations.py, "few" for few elements of one type.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from tests.device.emulated import use
from torch import Tensor

from phalanx.torch_backend import call_context, process_group

DEVICE, REPEATS = use(sys.argv[1]), int(sys.argv[2])
IS_ASYNC, IS_FEW = DEVICE.type != "cpu", "few" in sys.argv
WAYS = ("synchronous", "wait", "future", "dropped")
DTYPES = (torch.float32,) if IS_FEW else (torch.float32, torch.bfloat16, torch.int64)
SIZES = (1, 100_003) if IS_FEW else (1, 1_000_003)
SLEEP_CYCLES = 1_000_000  # half a millisecond
LATE_TASKS = 8
Op = dist.ReduceOp
call_context.PART_BYTES = process_group.PART_BYTES = 2**17
# Up to PyTorch 2.12 by their older names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
Call = Callable[[Tensor, bool], tuple[dist.Work | list[dist.Work] | None, Tensor]]


def values(rank: int, count: int, dtype: torch.dtype, salt: int) -> Tensor:
    """Small whole numbers, whose sums every type holds exactly."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.randint(1, 20, (count,), generator=generator).to(dtype)


def empty(count: int, like: Tensor) -> Tensor:
    return torch.full((count,), -1, dtype=like.dtype, device=like.device)


def cases(size: int, rank: int) -> Iterator[tuple[str, Call, Callable[[list[Tensor]], Tensor]]]:
    """Yield a name, the call on (size · n,) values of this rank, and its result by all ranks'."""

    def reduces(op: Op.RedOpType) -> Call:
        return lambda own, is_async: (dist.all_reduce(own, op, async_op=is_async), own)

    def broadcasts(own: Tensor, is_async: bool) -> tuple[dist.Work | None, Tensor]:
        return dist.broadcast(own, size - 1, async_op=is_async), own

    def gathers(own: Tensor, is_async: bool) -> tuple[dist.Work | None, Tensor]:
        result = empty(size * own.numel(), own)
        return all_gather_single(result, own, async_op=is_async), result

    def scatters(own: Tensor, is_async: bool) -> tuple[dist.Work | None, Tensor]:
        result = empty(own.numel() // size, own)
        return reduce_scatter_single(result, own, async_op=is_async), result

    def exchanges(own: Tensor, is_async: bool) -> tuple[dist.Work | None, Tensor]:
        result = empty(own.numel(), own)
        return dist.all_to_all_single(result, own, async_op=is_async), result

    def passes(own: Tensor, is_async: bool) -> tuple[list[dist.Work] | None, Tensor]:
        result, to, source = empty(own.numel(), own), (rank + 1) % size, (rank - 1) % size
        if is_async:
            return [dist.irecv(result, source), dist.isend(own, to)], result
        for turn in range(size):  # blocking ones take turns
            if turn == rank:
                dist.send(own, to)
            if turn == (rank - 1) % size:
                dist.recv(result, source)
        return None, result

    def total(all_of: list[Tensor]) -> Tensor:
        return torch.stack(all_of).double().sum(0)

    def mean(all_of: list[Tensor]) -> Tensor:
        quotient = total(all_of) / size
        return quotient if all_of[0].is_floating_point() else quotient.floor()

    def own_part(whole: Tensor) -> Tensor:
        return whole.chunk(size)[rank]

    yield "all_reduce sum", reduces(Op.SUM), total
    yield "all_reduce max", reduces(Op.MAX), lambda all_of: torch.stack(all_of).amax(0)
    yield "all_reduce avg", reduces(Op.AVG), mean
    yield "broadcast", broadcasts, lambda all_of: all_of[-1]
    yield "all_gather", gathers, torch.cat
    yield "reduce_scatter", scatters, lambda all_of: own_part(total(all_of))
    yield "all_to_all", exchanges, lambda all_of: torch.cat([own_part(each) for each in all_of])
    yield "send, recv", passes, lambda all_of: all_of[(rank - 1) % size]


def on(stream: object) -> AbstractContextManager[object]:
    return stream if isinstance(stream, torch.Stream) else nullcontext()


def run(
    call: Call, own: Tensor, device: torch.device, way: str, *, has_streams: bool
) -> Tensor | None:
    """Return the result of a call between streams that are late; None: it is dropped.

    has_streams: of its own, instead of the device's default one and another current device."""
    writer, reader = (torch.Stream(device), torch.Stream(device)) if has_streams else (None, None)
    source, found = own.to(device), None
    if IS_ASYNC:
        torch.accelerator.synchronize(device)
    with on(writer):
        given = empty(own.numel(), source)
        if device.type == "cuda":
            torch.cuda._sleep(SLEEP_CYCLES)
        for _ in range(LATE_TASKS if IS_ASYNC else 0):  # each waits on an emulated device
            source.neg()
        given.copy_(source)
        work, result = call(given, way != "synchronous")
        if way == "synchronous":
            found = result.clone()
            result.fill_(-2), given.fill_(-2)
    with on(reader):
        for each in work if isinstance(work, list) else [work] * (work is not None):
            each.get_future().wait() if way == "future" else each.wait()
        if way in ("wait", "future"):
            found = result.clone()
            result.fill_(-2)
    if way == "dropped":
        del work, result, given
        with on(writer):  # where nothing of them is under way: their memory is free
            empty(own.numel(), source)
    if IS_ASYNC:
        torch.accelerator.synchronize(device)
    return None if found is None else found.cpu()


def main() -> None:
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    # Where there are several, not that which is the current one.
    index = (rank + 1) % torch.accelerator.device_count() if IS_ASYNC else None
    device = torch.device(DEVICE.type, index)
    wrong, number = [], 0
    for dtype, count, way in itertools.product(DTYPES, SIZES, WAYS):
        for name, call, expected in cases(size, rank):
            for repeat in range(REPEATS):
                all_of = [values(each, size * count, dtype, repeat) for each in range(size)]
                right = expected(all_of).to(dtype)
                has_streams = IS_ASYNC and number % 3 > 0
                found = run(call, all_of[rank], device, way, has_streams=has_streams)
                number += 1
                if found is not None and not torch.equal(found, right):
                    text = f"{name} of {dtype}, {count} elements, {way}, {repeat}: "
                    wrong.append(text + f"{int((found != right).sum())} of {right.numel()} differ")
    assert not wrong, f"rank {rank}: {len(wrong)} of {number} are wrong\n" + "\n".join(wrong[:40])
    dist.destroy_process_group()
    print(f"rank {rank} of {size} is done, {number} calls", flush=True)


main()
