"""Have MPI make a process of its own, and one that this starts, ready; print what they map."""

import multiprocessing
import os

from phalanx.comm.mpi import mpi
from phalanx.jobs.leftovers import leftovers_of


def show() -> None:
    mpi()
    print("segments:", *leftovers_of([os.getpid()], []), flush=True)


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=show)
    process.start()
    process.join()
    show()
