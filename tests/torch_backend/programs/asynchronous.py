"""Two ranks, of which 1 comes late: what rank 0 can do meanwhile, and how its waits end."""

import time
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

LATE_S = 1.0
# Up to PyTorch 2.12 by its older name.
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def took(began: float) -> float:
    return time.perf_counter() - began


def check_calls_return_at_once(rank: int) -> None:
    dist.barrier()
    if rank == 1:
        time.sleep(LATE_S)
    began = time.perf_counter()
    tensors = [torch.ones(200_000) for _ in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    works.append(dist.barrier(async_op=True))
    sent = dist.isend(torch.ones(1_000_000), 1 - rank)
    received = torch.zeros(1_000_000)
    works += [sent, dist.irecv(received, 1 - rank)]
    assert took(began) < 0.2, f"the calls took {took(began):.2f} s"
    if rank == 0:
        assert not works[0].is_completed()
        assert not works[-1].is_completed()
    for work in works:
        work.wait()
    assert rank == 1 or took(began) > LATE_S / 2
    assert received[-1] == 1
    assert all(tensor[0] == 2 for tensor in tensors)


def check_messages_pass_collectives(rank: int) -> None:
    """A receive that waits stops no collective, and a collective that waits stops no message."""
    late = torch.zeros(1)
    if rank == 0:
        receive = dist.irecv(late, 1, tag=5)
        future = receive.get_future()
    dist.all_reduce(torch.ones(10))
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        dist.send(torch.full((1,), 7.0), 1, tag=6)
        work.wait()
        assert future.wait()[0].item() == 3
    else:
        got = torch.zeros(1)
        dist.recv(got, 0, tag=6)
        assert got.item() == 7
        dist.all_reduce(torch.ones(1))
        dist.send(torch.full((1,), 3.0), 0, tag=5)


def check_timeouts(rank: int) -> None:
    dist.barrier()
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        with pytest.raises(dist.DistBackendError, match=r"all_reduce.*0\.2 s"):
            work.wait(timedelta(seconds=0.2))
        got = dist.irecv(torch.zeros(1), 1)
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            got.wait(timedelta(seconds=0.2))
    else:
        time.sleep(LATE_S)
        work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    dist.barrier()
    group = dist.new_group(timeout=timedelta(seconds=0.3))
    other = dist.new_group()
    if rank == 0:
        for call in (
            lambda: dist.all_reduce(torch.ones(1), group=group),
            lambda: dist.monitored_barrier(other, timedelta(seconds=0.3)),
        ):
            with pytest.raises(
                dist.DistBackendError,
                match=r"Timed out waiting: rank 0 waited 0\.3 s.*number 1.*rank 1",
            ):
                call()
    dist.barrier()


def check_monitored_barrier(rank: int) -> None:
    """Its errors have the words that programs look for."""
    for wait_all_ranks, text in ((False, "Rank 1 failed"), (True, "Ranks 1 failed")):
        group = dist.new_group()
        if rank == 1:  # on messages, after rank 0 has asked who is there
            time.sleep(LATE_S if group._engine.shm is not None else 4 * LATE_S)
        reached = "Rank 1 successfully reached monitoredBarrier"
        said = reached if rank else f"{text} to pass monitoredBarrier in 300 ms"
        with pytest.raises(RuntimeError, match=said):
            dist.monitored_barrier(group, timedelta(seconds=0.3), wait_all_ranks)
        dist.barrier()
    group = dist.new_group()
    with pytest.raises(RuntimeError, match=f"Rank {rank} timed out in monitoredBarrier"):
        group.monitored_barrier(timedelta(0))
    dist.monitored_barrier(group, timedelta(seconds=30), wait_all_ranks=True)


def check_timeout_of_frameworks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=7))
    assert dist.group.WORLD.options._timeout == timedelta(seconds=7)


def check_premultiplied_in_turn(rank: int) -> None:
    """A factor is multiplied when the collective's turn comes, not when it is called."""
    tensor = torch.ones(1000)
    if rank == 1:
        time.sleep(LATE_S)
    works = [dist.all_reduce(tensor, async_op=True)]
    twice = dist._make_nccl_premul_sum(2.0)
    works.append(dist.all_reduce(tensor, twice, async_op=True))
    scattered = torch.zeros(500)
    works.append(reduce_scatter_single(scattered, tensor, twice, async_op=True))
    for work in works:
        work.wait()
    assert (tensor == 8).all(), tensor
    assert (scattered == 32).all(), scattered


def main() -> None:
    dist.init_process_group("mpi", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    check_calls_return_at_once(rank)
    check_messages_pass_collectives(rank)
    check_premultiplied_in_turn(rank)
    check_timeouts(rank)
    check_monitored_barrier(rank)
    check_timeout_of_frameworks()
    dist.destroy_process_group()
    print(f"rank {rank} of 2 is done", flush=True)


main()
