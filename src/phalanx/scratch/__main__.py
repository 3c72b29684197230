"""`python -m phalanx.scratch <run folder> <folder of the samples>`: one rank of a run that
`phalanx scratch` started."""

import sys
from pathlib import Path

from phalanx.launch.streams import prepare_streams
from phalanx.scratch.rank import run_rank

prepare_streams()
run_rank(Path(sys.argv[1]), Path(sys.argv[2]))
