"""A rank for the tests of jobs: `rank.py <marker> <behaviour>`. Says `up` when MPI is, then acts.

`alone` behaviours start no MPI: ranks that a Job starts itself.
"""

import os
import signal
import sys
import time

LONG_S = 60.0


def up(comm) -> None:
    comm.Barrier()
    print("up", flush=True)


def sleep(rank: int) -> None:
    time.sleep(LONG_S)


def ignore_sigterm(rank: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", flush=True)
    time.sleep(LONG_S)


def fail(rank: int) -> None:
    if rank == 1:
        time.sleep(0.2)  # at once, it would be gone before MPICH's file was seen to be its own
        raise RuntimeError("rank 1 has had enough")
    time.sleep(LONG_S)


def finish(rank: int) -> None:
    print(f"rank {rank} is done\n", end="", flush=True)  # in one write: ranks share the log


BEHAVIOURS = {"sleep": sleep, "deaf": ignore_sigterm, "fail": fail, "finish": finish}


def main() -> None:
    _marker, behaviour, *alone = sys.argv[1:]
    if alone:
        BEHAVIOURS[behaviour](int(os.environ["RANK"]))
        return
    from mpi4py import MPI

    from phalanx.jobs.orphan import end_with_parent

    end_with_parent()
    comm = MPI.COMM_WORLD
    segment = MPI.Win.Allocate_shared(1 << 16, 1, comm=comm)
    up(comm)
    try:
        BEHAVIOURS[behaviour](comm.rank)
    except RuntimeError as error:
        print(error, flush=True)
        comm.Abort(3)
    segment.Free()


main()
