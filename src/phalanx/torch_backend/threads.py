"""PyTorch's compute threads, where ranks of a node would all compute by one a core."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from phalanx.errors import UserError
from phalanx.jobs.binding import cores_of_rank
from phalanx.jobs.cores import bound_cores

BITWISE_THREADS = 1
"""Threads of a rank whose results have the same bits on any number of ranks: sums within an
operation depend on the number of threads."""

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def share_cores(local_ranks: int) -> None:
    """Have PyTorch compute by cores ÷ ranks threads, unless the user has set their number.

    local_ranks: on this node. A number that is PyTorch's own, a thread for each core that this
    process may use (or for each two, with hyper-threading), counts as not set.
    """
    threads, cores = torch.get_num_threads(), len(bound_cores())
    if threads in (cores, cores // 2) and not any(name in os.environ for name in VARIABLES):
        torch.set_num_threads(min(threads, cores_of_rank(local_ranks, os.environ)))


def compute_bitwise() -> None:
    """Have PyTorch compute the same bits in every process: on one thread, and refusing operations
    whose results vary, by their name. Memory that nobody has initialized is filled with NaN, until
    `stop_filling_memory`."""
    torch.set_num_threads(BITWISE_THREADS)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]


def stop_filling_memory() -> None:
    """Have PyTorch leave memory that nobody has initialized as it is, after a step in which a
    program that reads such memory has met NaN: the filling takes up to a fifth of a short step."""
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def naming_operations() -> Iterator[None]:
    """Turn PyTorch's refusal of an operation whose results vary into a line for the user."""
    try:
        yield
    except RuntimeError as error:
        if (refused := refused_operation(error)) is not None:
            raise UserError(refused) from error
        raise


def refused_operation(error: BaseException) -> str | None:
    """Return the line for the user where PyTorch has refused an operation in a bitwise run."""
    found = re.match(r"(\S.*?) does not have a deterministic implementation", str(error))
    if not isinstance(error, RuntimeError) or found is None:
        return None
    return (
        f"bitwise: the results of {found[1]} vary from run to run: PyTorch has no deterministic "
        "implementation of it; use another operation, or leave bitwise out"
    )
