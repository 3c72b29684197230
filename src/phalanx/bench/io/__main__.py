"""`python -m phalanx.bench.io OPTIONS`: a rank of `phalanx bench io`."""

from phalanx.bench.io.rank_benchmark import measure_on_rank
from phalanx.bench.ranks import launched_rank

if __name__ == "__main__":  # reader processes read this file again
    with launched_rank() as (options, folder):
        measure_on_rank(options, folder)
