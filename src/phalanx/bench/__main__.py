"""`python -m phalanx.bench OPTIONS`: a rank of `phalanx bench collectives`."""

import os

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.rank_benchmark import measure_on_rank
from phalanx.bench.ranks import launched_rank
from phalanx.jobs.detect import detect

with launched_rank() as (options, folder):
    measure_on_rank(CollectivesConfig.from_record(options), folder, detect(os.environ))
