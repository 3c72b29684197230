"""`python -m phalanx.bench.io <folder> <ranks>`: one rank of what `phalanx bench io` started."""

import sys
from pathlib import Path

from phalanx.bench.io.rank import run_rank
from phalanx.launch.streams import prepare_streams

if __name__ == "__main__":  # reader processes read this file again
    prepare_streams()
    run_rank(Path(sys.argv[1]), int(sys.argv[2]))
