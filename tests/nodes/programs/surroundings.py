"""Print what every rank finds on its node: host, threads, a variable of the user's."""

import os
import socket

from mpi4py import MPI

ranks = MPI.COMM_WORLD.gather(
    (socket.gethostname(), os.environ["OMP_NUM_THREADS"], os.environ.get("OF_THE_USER"))
)
if MPI.COMM_WORLD.rank == 0:
    for host, threads, value in ranks:
        print(host, threads, value)
