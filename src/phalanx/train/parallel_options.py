"""Options that all strategies have. No torch, no MPI.

Annotations here are objects, not strings: the command line reads those of the class that inherits
these options, in whose module the names mean nothing.
"""

from dataclasses import dataclass
from typing import Literal

from phalanx.errors import UserError
from phalanx.parallel.option_groups import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, Needs, ruled
from phalanx.run.strategy_options import StrategyName

Autocast = Literal["none", "bf16"]

SURVIVING = Needs("--survive", lambda options: options.survive)
BITWISE = Needs("--bitwise or --survive", lambda options: options.bitwise or options.survive)

WITHOUT_MPI: tuple[StrategyName, ...] = ("sequential", "gloo")


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Options of the parallelism that all strategies have."""

    strategy: StrategyName = "sequential"
    """`sequential` in one process, `mpi` ranks that sum their gradients, `shared` the same with
    parameters and optimizer state that they share, `gloo` PyTorch's DDP, `server` workers and
    parameter servers, `local` SGD that averages now and then, `zero` sharded state, `tensor` split
    layers, `pipeline` stages, `mesh` any of these together (what --mesh alone means)."""

    ranks: int | None = ruled(None, AT_LEAST_ONE)
    """Number of processes. Default: as many as the launcher started or the mesh has, else one a
    core."""

    threads: int | None = ruled(None, AT_LEAST_ONE)
    """Compute threads of each rank. Default: cores ÷ ranks of the node."""

    accumulate: int = ruled(1, AT_LEAST_ONE)
    """Micro-batches into which each rank splits its shard of a batch, to save memory."""

    bitwise: bool = False
    """Train to the same bits on any number of ranks: by `sequential`, `mpi`, `shared`, `zero` or
    `pipeline`, on one thread each, with a fixed cut into micro-batches and order of sums."""

    survive: bool = False
    """Go on without ranks that die, to the same bits: `mpi`, `zero` or `shared`, with Open MPI.
    Means --bitwise, too."""

    spares: int = ruled(0, NOT_NEGATIVE, SURVIVING)
    """Number of spare ranks, which wait, asleep, to take the places of those that die."""

    patience: float | None = ruled(None, POSITIVE, SURVIVING)
    """Kill a rank that keeps the others waiting for longer than these seconds, stopped or stuck,
    and go on without it. Default: --timeout-s ends the wait, and the run."""

    rebalance: bool = ruled(False, BITWISE)
    """Give ranks that are slow for long fewer micro-batches; the bits stay the same."""

    slow_rank: str | None = None
    """Makes a rank slower, as RANK:SECONDS a step, to see which ranks wait for it; in bitwise runs
    of an even share of the micro-batches."""

    def check_bitwise(self) -> None:
        """Raise UserError for what would make the bits depend on the number of ranks."""
        if not self.bitwise:
            return
        if self.threads not in (None, 1):
            raise UserError(
                f"--bitwise computes on one thread a rank, not on {self.threads}: sums within "
                "operations depend on their number; leave --threads out, and start more ranks"
            )
        if self.accumulate > 1:
            raise UserError(
                f"--bitwise cuts batches itself: give --micro-batches, not --accumulate "
                f"{self.accumulate}"
            )

    @property
    def uses_mpi(self) -> bool:
        return self.strategy not in WITHOUT_MPI


@dataclass(frozen=True, kw_only=True)
class CommunicationOptions:
    """Options of communication that all strategies have."""

    autocast: Autocast = "none"
    """Arithmetic of forward and backward passes where that is safe: `bf16`, or as --dtype."""

    trace: bool = False
    """Record what every rank does when, and write one trace of all for Perfetto."""


def parse_slow_rank(text: str) -> tuple[int, float]:
    """`1:0.02` → (1, 0.02). Raises: UserError for anything else."""
    rank, _, seconds = text.partition(":")
    try:
        parsed = int(rank), float(seconds)
    except ValueError:
        parsed = -1, -1.0
    if parsed[0] < 0 or not parsed[1] >= 0:
        raise UserError(f"--slow-rank {text} is not RANK:SECONDS, such as 1:0.02")
    return parsed
