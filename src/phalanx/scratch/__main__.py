"""`python -m phalanx.scratch <run folder> <folder of the samples>`: one rank of a run that
`phalanx scratch` started."""

import os
import sys
from pathlib import Path

from phalanx.jobs.rank import run_rank
from phalanx.launch.binding import use_own_cores
from phalanx.launch.detect import detect
from phalanx.launch.streams import prepare_streams

prepare_streams()
use_own_cores(os.environ)
from phalanx.scratch.session import train  # noqa: E402  # loads NumPy

folder, launched = Path(sys.argv[1]), detect(os.environ)
run_rank(folder, launched, lambda: train(folder, Path(sys.argv[2]), launched))
