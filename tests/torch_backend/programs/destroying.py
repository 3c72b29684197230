"""Each rank: groups are destroyed with work under way. It ends before `destroy_process_group`
returns, well or in an error, and never later; after that everything can begin again."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


def begin(timeout_s: float = 60) -> int:
    dist.init_process_group("mpi", timeout=timedelta(seconds=timeout_s))
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total[0] == dist.get_world_size()
    return dist.get_rank()


def raised_by(call: Callable[[], object]) -> str:
    try:
        call()
    except dist.DistBackendError as error:
        return str(error)
    return ""


def check_destroy_waits(late_s: float) -> None:
    """Rank 1 comes later than a fixed time would allow, and all sums are right."""
    rank = begin()
    tensors = [torch.ones(n) for n in (10, 100_000)]
    if rank == 1:
        time.sleep(late_s)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.destroy_process_group()
    assert all(work.is_completed() for work in works)
    assert all(tensor[-1] == tensor[0] > 1 for tensor in tensors)


def check_destroy_waits_for_other_threads() -> None:
    rank = begin()
    tensor = torch.ones(100_000)
    if rank == 1:
        time.sleep(1)
    thread = threading.Thread(target=dist.all_reduce, args=(tensor,))
    thread.start()
    queue = dist.group.WORLD._queue
    while rank == 0 and queue.try_begin():  # until the thread is in the collective
        queue.end()
        time.sleep(0.01)
    if rank == 1:
        thread.join()
    dist.destroy_process_group()
    assert tensor[-1] == tensor[0] > 1
    thread.join()


def left_alone(kind: str) -> tuple[Tensor, str]:
    """A group of which rank 0 destroys more than it was asked for; the tensor, and the error."""
    rank = begin(1.0)
    group = dist.new_group(timeout=timedelta(seconds=1)) if kind == "subgroup" else None
    tensor, text = torch.ones(100_000), ""
    if rank == 0:
        dist.all_reduce(tensor, group=group, async_op=True)
        dist.all_reduce(tensor, group=group, async_op=True)
        if kind == "abort":
            dist.group.WORLD.abort()
            assert raised_by(dist.destroy_process_group) == ""
            return tensor, text
        text = raised_by(lambda: dist.destroy_process_group(group))
    else:
        time.sleep(4)  # the timeout, and what rank 0 then takes to ask who is there
    while raised_by(dist.destroy_process_group):  # what failed is said once
        pass
    return tensor, text


def check_destroy_gives_up(kind: str) -> None:
    tensor, text = left_alone(kind)
    began = time.monotonic()
    rank = begin()
    time.sleep(max(0.0, began + 1 - time.monotonic()))
    assert (tensor == 1).all(), "memory was written after the group was destroyed"
    if rank == 0 and kind != "abort":
        assert "destroy_process_group: 2 of its collectives" in text, text
        assert "waited 1 s in all_reduce number" in text, text
        assert "for rank 1" in text, text
    dist.destroy_process_group()


check_destroy_waits(6)
check_destroy_waits_for_other_threads()
for each in ("world", "subgroup", "abort"):
    check_destroy_gives_up(each)
here = begin()
assert not [t.name for t in threading.enumerate() if "phalanx" in t.name]
print(f"rank {here} of {dist.get_world_size()} is done", flush=True)
dist.destroy_process_group()
