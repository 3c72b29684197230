"""Options of a run whose ranks the user's own launcher started on several nodes.

Rank 0 completes them, by the data and the checkpoints that its node has, and the others follow:
nodes that lack files get them later, and none decides by other files than rank 0.
"""

from __future__ import annotations

import json
from dataclasses import replace

from phalanx.launch.detect import Launched
from phalanx.parallel.run_group import RunGroup
from phalanx.train.config import TrainConfig


def may_span_nodes(launched: Launched | None) -> bool:
    """Return whether a launcher has started ranks that may be on several nodes."""
    return launched is not None and launched.may_span_nodes


def follows_first_rank(launched: Launched | None) -> bool:
    """Return whether this rank takes over what rank 0 has completed."""
    return launched is not None and launched.rank > 0 and may_span_nodes(launched)


def share_completed(
    completed: TrainConfig | None, own: TrainConfig, group: RunGroup
) -> TrainConfig | None:
    """Return the options that rank 0 has completed, with this rank's own threads. Collective.

    completed: on rank 0; None, for every rank, where nothing is left to do. own: with its threads.
    """
    text = group.share("" if completed is None else json.dumps(completed.as_record()))
    if not text:
        return None
    return replace(TrainConfig.from_record(json.loads(text)), threads=own.threads)
