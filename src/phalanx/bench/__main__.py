"""`python -m phalanx.bench OPTIONS`: a rank of `phalanx bench collectives`."""

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.rank_benchmark import measure_on_rank
from phalanx.bench.ranks import launched_rank

with launched_rank() as (options, folder):
    measure_on_rank(CollectivesConfig.from_record(options), folder)
