"""`python -m phalanx.train <run folder>`: one rank of a run that `phalanx train` started."""

import gc
import sys
from pathlib import Path

from phalanx.jobs.streams import lose_what_the_disk_refuses, prepare_streams

lose_what_the_disk_refuses()
prepare_streams()
gc.disable()  # what is imported stays: to look for garbage in it takes a tenth of the start
from phalanx.train.rank import run_started_by_phalanx  # noqa: E402  # loads PyTorch

gc.freeze()
gc.enable()
run_started_by_phalanx(Path(sys.argv[1]))
