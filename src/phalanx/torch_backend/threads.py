"""PyTorch's compute threads, where ranks of a node would all compute by one a core."""

from __future__ import annotations

import os

import torch

from phalanx.launch.binding import bound_cores, cores_of_rank

BITWISE_THREADS = 1
"""Of a rank whose results have the same bits on any number of ranks: sums within an operation
depend on the number of threads."""

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def share_cores(local_ranks: int) -> None:
    """Have PyTorch compute by cores ÷ ranks threads, unless the user has set their number.

    local_ranks: on this node. A number that is PyTorch's own, a thread for each core that this
    process may use (or for each two, with hyper-threading), counts as not set.
    """
    threads, cores = torch.get_num_threads(), len(bound_cores()) or os.cpu_count() or 1
    if threads in (cores, cores // 2) and not any(name in os.environ for name in VARIABLES):
        torch.set_num_threads(min(threads, cores_of_rank(local_ranks, os.environ)))


def compute_bitwise() -> None:
    """Have PyTorch compute the same bits in every process: on one thread, and refusing operations
    whose results vary, by their name."""
    torch.set_num_threads(BITWISE_THREADS)
    torch.use_deterministic_algorithms(True)
