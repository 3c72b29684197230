"""Each rank: rank 1 comes too late to the backward pass of a DDP module, then it fails. Everywhere
that ends in an error of Python; DDP's reducer is C++ and sees the futures of works.

First word "apart": as on a machine with cores to spare, where buckets are reduced on the thread of
the group.
"""

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from phalanx.comm import failure_detector

TIMEOUT_S, LATE_S = 0.5, 1.5


def model_on(group: dist.ProcessGroup, **options: object) -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    model = DistributedDataParallel(layers, process_group=group, bucket_cap_mb=0.3, **options)
    group.buckets.runs_inline = not APART  # whatever cores this machine has
    return model


def step(model: nn.Module) -> None:
    model(torch.ones(2, 256)).sum().backward()


def own_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def hook_in_turns(
    group: dist.ProcessGroup, bucket: dist.GradBucket
) -> torch.futures.Future[Tensor]:
    """Waits in a callback for a future that was made of another one, as PowerSGD nearly does."""
    halves = bucket.buffer().chunk(2)
    works = [dist.all_reduce(half, group=group, async_op=True) for half in halves]
    first, second = [work.get_future().then(lambda done: done.value()[0]) for work in works]
    return first.then(lambda done: (done.value(), second.wait(), bucket.buffer())[-1])


def with_hook(group: dist.ProcessGroup, hook: Callable[..., object]) -> Callable[[], None]:
    model = model_on(group)
    model.register_comm_hook(group, hook)
    return partial(step, model)


def under_join(group: dist.ProcessGroup) -> Callable[[], None]:
    model = model_on(group)

    def steps() -> None:
        with Join([model]):
            for _ in range(1 + dist.get_rank() % 2):
                step(model)

    return steps


def futures_of_all(group: dist.ProcessGroup) -> None:
    works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for _ in range(2)]
    torch.futures.wait_all([work.get_future() for work in works])


def coalesced(group: dist.ProcessGroup) -> None:
    with dist._coalescing_manager(group, async_ops=True) as manager:
        for _ in range(2):
            dist.all_reduce(torch.ones(1000), group=group)
    manager.wait()


def coalesced_future(group: dist.ProcessGroup) -> None:
    options = dist.AllreduceCoalescedOptions()
    options.asyncOp = True
    work = group.allreduce_coalesced([torch.ones(1000), torch.ones(10)], options)
    work.get_future().wait()


CASES: tuple[Callable[[dist.ProcessGroup], Callable[[], None]], ...] = (
    lambda group: partial(step, model_on(group)),
    lambda group: partial(step, model_on(group, find_unused_parameters=True)),
    lambda group: partial(step, model_on(group, gradient_as_bucket_view=True)),
    lambda group: with_hook(group, default_hooks.allreduce_hook),
    lambda group: with_hook(group, default_hooks.fp16_compress_hook),
    lambda group: with_hook(group, own_hook),
    lambda group: with_hook(group, hook_in_turns),
    under_join,
    lambda group: partial(futures_of_all, group),
    lambda group: partial(coalesced, group),
    lambda group: partial(coalesced_future, group),
)


def check_late(number: int, rank: int) -> None:
    group = dist.new_group()
    call = CASES[number](group)
    call()
    dist.barrier()
    group.set_timeout(timedelta(seconds=TIMEOUT_S))
    if rank == 1:
        time.sleep(LATE_S)
    try:
        call()
    except RuntimeError as error:
        text = str(error)
        said = "waited 0.5 s in" in text and (rank == 1 or "for rank 1" in text)
        assert said or "can no longer be used" in text or "failed: " in text, text
    else:
        raise AssertionError(f"case {number} raised nothing on rank {rank}")
    dist.barrier()


failure_detector.GRACE_S = (
    0.4  # that the others have to answer, on messages: less than rank 1 is late
)
APART = sys.argv[1:] == ["apart"]
dist.init_process_group("mpi", timeout=timedelta(seconds=60))
for each in range(len(CASES)):
    check_late(each, dist.get_rank())
print(f"rank {dist.get_rank()} of {dist.get_world_size()} is done", flush=True)
last = model_on(dist.group.WORLD)
for _ in range(2):  # after the first one the buckets are made anew
    step(last)
if dist.get_rank() == 1:
    raise ValueError("bad batch")
try:
    step(last)
except RuntimeError as error:
    print(f"rank {dist.get_rank()} says: {error}", flush=True)
    raise
