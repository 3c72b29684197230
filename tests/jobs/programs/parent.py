"""Starts a job and waits, to be killed: `parent.py <marker> <log> <mpi | local> <behaviour>`."""

import sys
from pathlib import Path

from tests.jobs.starting import local_ranks, mpi_ranks

from phalanx.jobs.job import Job

marker, log, kind, behaviour = sys.argv[1:]
start = {"mpi": mpi_ranks, "local": local_ranks}[kind]
with Job.start(start(2, marker, behaviour), Path(log)) as job:
    job.wait()
