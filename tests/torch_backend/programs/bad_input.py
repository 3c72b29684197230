"""Two ranks make every mistake there is; each must end in an error that says what was wrong."""

import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

# Up to PyTorch 2.12 by their older names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def refused(error: type[Exception], pattern: str, call: Callable[[], object]) -> None:
    with pytest.raises(error, match=pattern) as raised:
        call()
    assert len(str(raised.value).splitlines()) <= 2, raised.value


def check_local_mistakes(rank: int) -> None:
    """Found before anything is sent, so the group goes on."""
    ones, group = torch.ones(4), dist.group.WORLD
    here = f"rank {rank} of group 0, "
    sum_of = dist.all_reduce
    mean = dist.ReduceOp.AVG
    refused(TypeError, here + "all_reduce: bool has no.*AVG", lambda: sum_of(ones > 0, mean))
    complex_ones = torch.ones(4, dtype=torch.complex64)
    largest = dist.ReduceOp.MAX
    refused(ValueError, "does not support", lambda: sum_of(complex_ones, largest))
    refused(
        TypeError,
        here + "reduce: complex64 has no.*MAX",
        lambda: dist.reduce(complex_ones, 0, largest),
    )
    refused(
        TypeError,
        here + "all_reduce: float8_e5m2 has no reduction",
        lambda: sum_of(ones.to(torch.float8_e5m2)),
    )
    sparse = ones.to_sparse()
    refused(TypeError, here + "all_reduce: sparse.*only be summed", lambda: sum_of(sparse, largest))
    refused(
        TypeError,
        here + "all_reduce: .*sparse_csr",
        lambda: sum_of(torch.ones(2, 2).to_sparse_csr()),
    )
    refused(TypeError, here + "broadcast: .*sparse", lambda: dist.broadcast(sparse, 0))
    other = torch.ones(4 + rank).to_sparse()
    refused(ValueError, r"shapes: \(\d,\) on rank \d, \(\d,\) on rank \d", lambda: sum_of(other))
    refused(ValueError, "rank.*not of meta", lambda: sum_of(torch.ones(4, device="meta")))
    refused(ValueError, "rank.*5|5.*rank", lambda: dist.broadcast(ones, group_src=5))
    refused(ValueError, here + "recv: src is 7", lambda: group.recv([ones], 7, 0))
    refused(ValueError, here + "send: dst is -3", lambda: group.send([ones], -3, 0))
    refused(
        ValueError,
        here + "all_gather: 1 tensors for 2 ranks",
        lambda: dist.all_gather([ones], ones),
    )
    uneven = [torch.zeros(3), torch.zeros(3)]
    refused(
        ValueError, here + r"all_gather: .*\(3,\).*\(4,\)", lambda: dist.all_gather(uneven, ones)
    )
    refused(
        ValueError,
        here + "all_gather_single: the output has 4 elements, not 2 times the 4",
        lambda: all_gather_single(torch.zeros(4), ones),
    )
    refused(
        ValueError,
        here + "reduce_scatter_single",
        lambda: reduce_scatter_single(ones, torch.ones(7)),
    )
    refused(
        ValueError,
        here + "all_to_all_single: .*input.*3 rows",
        lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 2]),
    )
    refused(
        ValueError,
        here + r"all_to_all_single: .*\[1, 9\]",
        lambda: dist.all_to_all_single(ones, ones, [2, 2], [1, 9]),
    )
    refused(
        TypeError,
        here + "all_gather_single: .*float32.*int64|int64.*float32",
        lambda: all_gather_single(torch.zeros(8, dtype=torch.int64), ones),
    )
    sum_of(ones)
    assert ones[0] == 2, "the group must still work"


def check_forked() -> None:
    """A child must be told, not crash MPI."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        text = "nothing was raised"
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            text = str(error)
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    text = os.read(reading, 1000).decode()
    assert "forked from rank" in text, text
    os.wait()
    dist.barrier()


def check_mismatch(rank: int) -> None:
    """What only comparing ranks can find. It ends the group, so each has one of its own."""
    one, two = torch.ones(2 + rank), torch.ones(2)
    mistakes = (
        (
            "rank 0.*2 elements.*rank 1.*3 elements",
            lambda group: dist.all_reduce(one, group=group),
        ),
        (
            "rank 0.*barrier.*rank 1.*all_reduce",
            lambda group: dist.all_reduce(two, group=group) if rank else dist.barrier(group=group),
        ),
        (
            "rank 0.*float32.*rank 1.*int32",
            lambda group: dist.all_reduce(two.int() if rank else two, group=group),
        ),
        (
            "root 0.*root 1",
            lambda group: dist.broadcast(two, group_src=rank, group=group),
        ),
    )
    # Without comparing, two ranks that both think to be the root have nothing to wait for.
    for pattern, call in mistakes if "PHALANX_CHECK" in os.environ else mistakes[:-1]:
        group = dist.new_group()
        refused(dist.DistBackendError, pattern, lambda g=group, c=call: c(g))
        refused(RuntimeError, "can no longer be used", lambda g=group: dist.barrier(group=g))
        dist.destroy_process_group(group)


def check_destroyed() -> None:
    group = dist.new_group()
    dist.destroy_process_group(group)
    refused(RuntimeError, "destroyed", lambda: group.barrier())
    refused(RuntimeError, "destroyed", lambda: group.send([torch.ones(1)], 0, 0))
    default = dist.group.WORLD
    dist.destroy_process_group()
    refused(RuntimeError, "destroyed", lambda: default.allreduce([torch.ones(1)]))
    refused(ValueError, "has not been initialized", lambda: dist.all_reduce(torch.ones(1)))


def main() -> None:
    dist.init_process_group("mpi")
    rank = dist.get_rank()
    check_local_mistakes(rank)
    check_forked()
    check_mismatch(rank)
    check_destroyed()
    refused(RuntimeError, "rank 0 of 5, but this process", lambda: given(0, 5))
    refused(RuntimeError, f"rank {1 - rank} of 2, but this process", lambda: given(1 - rank, 2))
    print(f"rank {rank} of 2 is done", flush=True)


def given(rank: int, world_size: int) -> None:
    dist.init_process_group("mpi", rank=rank, world_size=world_size)


main()
