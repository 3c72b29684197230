"""`python -m phalanx.bench.io <folder> <ranks>`: one rank of what `phalanx bench io` started."""

import sys
from pathlib import Path

from phalanx.bench.io.rank import run_rank

if __name__ == "__main__":  # reader processes read this file again
    run_rank(Path(sys.argv[1]), int(sys.argv[2]))
