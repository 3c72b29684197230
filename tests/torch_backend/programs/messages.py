"""Two ranks: messages beside collectives, given up, timed out, refused."""

import gc
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

LENGTHS = [1000, 16_000, 1_000_000]  # elements: eager, and with a handshake, in every MPI
SHORT = timedelta(seconds=0.3)


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("an error was expected")


def in_a_collective(rank: int) -> None:
    """The receiver waits in a collective for the sender, who waits for the receiver."""
    for length in LENGTHS:
        dist.barrier()
        if rank == 0:
            time.sleep(0.1)
            dist.isend(torch.ones(length), 1).wait()
            dist.all_reduce(torch.ones(4))
        else:
            received = torch.zeros(length)
            work = dist.irecv(received, 0)
            dist.all_reduce(torch.ones(4))
            work.wait()
            assert bool((received == 1).all())


def given_up(rank: int, *, times_out: bool) -> None:
    """Nothing is written to memory that a receive no longer owns, and the message waits for the
    next receive."""
    for length in LENGTHS:
        if rank == 0:
            abandoned = torch.zeros(length)
            address = abandoned.data_ptr()
            work = dist.irecv(abandoned, 1, tag=3)
            if times_out:
                text = error_of(lambda work=work: work.wait(SHORT))
                assert "waited 0.3 s in recv" in text or "waited 0.3 s in receive" in text, text
            del work, abandoned
            gc.collect()
            reused = [torch.full((length,), 7.0) for _ in range(8)]
            dist.barrier()
            received = torch.zeros(length)
            dist.recv(received, 1, tag=3)
            assert bool((received == 5).all()), received
            for tensor in reused:
                assert bool((tensor == 7).all()), (length, tensor.data_ptr() == address)
        else:
            dist.barrier()
            dist.send(torch.full((length,), 5.0), 0, tag=3)


def sent_and_dropped(rank: int) -> None:
    """What was sent arrives, whatever became of the work and of the tensor."""
    for length in LENGTHS:
        if rank == 0:
            dist.isend(torch.full((length,), 4.0), 1)
            gc.collect()
            other = [torch.full((length,), 7.0) for _ in range(8)]
            dist.barrier()
            del other
        else:
            dist.barrier()
            received = torch.zeros(length)
            dist.recv(received, 0)
            assert bool((received == 4).all()), received


def future_of_a_dropped_work(rank: int) -> None:
    """Whoever holds the future holds the receive."""
    received = torch.zeros(10)
    if rank == 0:
        future = dist.irecv(received, 1, tag=4).get_future()
        gc.collect()
        dist.barrier()
        future.wait()
        assert bool((received == 6).all())
    else:
        dist.barrier()
        dist.send(torch.full((10,), 6.0), 0, tag=4)


def refused_tags(rank: int) -> None:
    peer, tensor = 1 - rank, torch.zeros(3)
    for call in (dist.send, dist.isend, dist.recv, dist.irecv):
        for tag in (-1, -7, 2**40):
            text = error_of(lambda call=call, tag=tag: call(tensor, peer, tag=tag))
            assert text.startswith("ValueError") and f"tag {tag}" in text, text


def closed_while_waiting(rank: int) -> None:
    """A thread that waits is woken, and nothing is received any more."""
    peer, said = 1 - rank, []

    def receive() -> None:
        said.append(error_of(lambda: dist.recv(torch.zeros(10), peer, tag=9)))

    thread = threading.Thread(target=receive)
    thread.start()
    pending = dist.irecv(torch.zeros(10), peer, tag=10)
    time.sleep(0.3)
    dist.destroy_process_group()
    thread.join(10)
    assert not thread.is_alive()
    assert "was closed while" in said[0], said
    assert "was closed before" in error_of(pending.wait)


def main() -> None:
    dist.init_process_group("mpi", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    in_a_collective(rank)
    given_up(rank, times_out=False)
    given_up(rank, times_out=True)
    sent_and_dropped(rank)
    future_of_a_dropped_work(rank)
    refused_tags(rank)
    closed_while_waiting(rank)
    dist.init_process_group("mpi")
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} is done", flush=True)


main()
