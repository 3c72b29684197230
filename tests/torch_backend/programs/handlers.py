"""Two ranks: rank 0 gets a signal in the middle of a collective, rank 1 comes to that later. The
handler makes collectives, as one that saves a checkpoint before the job ends does."""

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

LATE_S = 1.5
ran: list[str] = []


def save(*_: object) -> None:
    total = torch.ones(2)
    dist.all_reduce(total)
    dist.barrier()
    assert total[0] == 2
    ran.append("saved")


def before_init(*_: object) -> None:
    save()


def send_soon(number: int, after_s: float = 0.5) -> None:
    threading.Timer(after_s, os.kill, (os.getpid(), number)).start()


def check_handler(rank: int, number: int, handler: Callable[..., None], call: Callable) -> None:
    """`call` is interrupted on rank 0 and goes on; the handler's collectives come after it."""
    dist.barrier()
    ran.clear()
    if rank == 0:
        send_soon(number)
        call()
        while not ran:  # a handler runs when Python looks for signals
            time.sleep(0.01)
    else:
        time.sleep(LATE_S)
        call()
        handler()
    assert ran == ["saved"], ran


def check_its_exception(rank: int) -> None:
    """It is raised by the collective that it came in, which is over then."""

    def fail(*_: object) -> None:
        raise KeyError("of the handler")

    dist.barrier()
    signal.signal(signal.SIGUSR1, fail)
    tensor = torch.ones(1000)
    if rank == 0:
        send_soon(signal.SIGUSR1)
        with pytest.raises(KeyError, match="of the handler"):
            dist.all_reduce(tensor)
    else:
        time.sleep(LATE_S)
        dist.all_reduce(tensor)
    assert (tensor == 2).all()


def check_ctrl_c(rank: int) -> None:
    """Python's own handler for SIGINT interrupts at once, whatever the signal."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGUSR2, signal.default_int_handler)
    began = time.monotonic()
    for number, each in ((signal.SIGINT, group), (signal.SIGUSR2, dist.new_group())):
        if rank == 0:
            send_soon(number)
            with pytest.raises(KeyboardInterrupt):
                dist.all_reduce(torch.ones(10), group=each)
            assert time.monotonic() - began < 30
        dist.barrier()


def check_what_programs_see() -> None:
    """They get back the handlers that they installed."""
    assert signal.getsignal(signal.SIGUSR2) is before_init
    assert signal.signal(signal.SIGUSR1, save) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) is save
    assert signal.signal(signal.SIGUSR1, signal.getsignal(signal.SIGUSR1)) is save
    assert signal.signal(signal.SIGALRM, signal.SIG_IGN) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN


def check_refused(rank: int) -> None:
    """A handler that nobody could put off is told what is wrong, instead of waiting for itself."""
    from _signal import signal as install

    group = dist.new_group()
    told: list[str] = []

    def handler(*_: object) -> None:
        try:
            dist.barrier(group)
        except RuntimeError as error:
            told.append(str(error))

    if rank == 0:
        install(signal.SIGUSR1, handler)
        send_soon(signal.SIGUSR1)
        dist.all_reduce(torch.ones(10), group=group)
        assert "awaited in the middle of another collective" in told[0], told
    else:
        time.sleep(LATE_S)
        dist.all_reduce(torch.ones(10), group=group)
        dist.barrier(group)
    dist.barrier()


def main() -> None:
    signal.signal(signal.SIGUSR2, before_init)
    dist.init_process_group("mpi", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    check_what_programs_see()
    other = dist.new_group()
    for number, handler in ((signal.SIGUSR1, save), (signal.SIGUSR2, before_init)):
        check_handler(rank, number, handler, lambda: dist.all_reduce(torch.ones(4)))
    check_handler(rank, signal.SIGUSR1, save, lambda: dist.barrier(group=other))
    check_handler(
        rank,
        signal.SIGUSR1,
        save,
        lambda: dist.all_gather([torch.ones(9), torch.ones(9)], torch.ones(9)),
    )
    check_its_exception(rank)
    check_refused(rank)
    check_ctrl_c(rank)
    print(f"rank {rank} of 2 is done", flush=True)


main()
