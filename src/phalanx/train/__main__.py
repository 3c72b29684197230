"""`python -m phalanx.train <run folder>`: one rank of a run that `phalanx train` started."""

import gc
import sys
from pathlib import Path

from phalanx.jobs.streams import lose_what_the_disk_refuses, prepare_streams

lose_what_the_disk_refuses()
prepare_streams()
gc.disable()  # until the loop, see session.py: what is imported stays, to look through it is slow
from phalanx.train.rank import run_started_by_phalanx  # noqa: E402  # loads PyTorch

run_started_by_phalanx(Path(sys.argv[1]))
