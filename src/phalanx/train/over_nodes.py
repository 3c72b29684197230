"""Options of a run whose ranks the user's own launcher started on several nodes.

Rank 0 completes them, by the data and the checkpoints that its node has, and the others follow:
nodes that lack files get them later, and none decides by other files than rank 0.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from phalanx.errors import UserError
from phalanx.launch.detect import Launched
from phalanx.parallel.run_group import RunGroup
from phalanx.train.config import TrainConfig


def may_span_nodes(launched: Launched | None) -> bool:
    """Return whether the ranks may be on several nodes: the launcher says so, or nothing."""
    return launched is not None and launched.local_world_size != launched.world_size > 1


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


@contextmanager
def named_host(launched: Launched | None) -> Iterator[None]:
    """Name rank and host in errors of the block, where one of several nodes may lack what the
    others have."""
    try:
        yield
    except UserError as error:
        host = socket.gethostname()
        if launched is None or not may_span_nodes(launched) or host in str(error):
            raise
        raise UserError(f"{error} (rank {launched.rank} on {host})") from error
