"""Options of the strategies in which every rank holds a replica of the model.

No torch, no MPI. Annotations here are objects, not strings: the command line reads them.
"""

from dataclasses import dataclass
from typing import Literal

from phalanx.errors import UserError
from phalanx.parallel.option_groups import (
    AT_LEAST_ONE,
    BELOW_ONE,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    Needs,
    ruled,
)

AllReduceMethod = Literal["auto", "shared", "library", "naive", "direct", "ring", "tree", "halving"]
Compression = Literal["none", "fp16", "bf16", "int8", "powersgd", "topk"]
Overlap = Literal["auto", "on", "off"]
OuterOptimizer = Literal["average", "nesterov"]
ServerMode = Literal["synchronous", "asynchronous", "bounded"]

UNCOMPRESSED = Needs(
    "gradients that are not compressed", lambda options: options.compress == "none"
)
POWERSGD = Needs("--compress powersgd", lambda options: options.compress == "powersgd")
TOPK = Needs("--compress topk", lambda options: options.compress == "topk")
BUCKETED = Needs(
    "gradients that overlap or are compressed, not for --overlap off without --compress",
    lambda options: options.overlap != "off" or options.compress != "none",
)


@dataclass(frozen=True, kw_only=True)
class MpiOptions:
    """Options of `mpi`."""

    all_reduce: AllReduceMethod = ruled("auto", UNCOMPRESSED)
    """Method by which `mpi` sums gradients: `shared` memory of the node, the MPI `library`, an
    algorithm on messages, or `auto`."""

    compress: Compression = "none"
    """`mpi`: what is sent in place of float32 gradients: half types, `int8` or the largest `topk`
    with error feedback, or a low rank (`powersgd`)."""

    powersgd_rank: int = ruled(4, AT_LEAST_ONE, POWERSGD)
    """`powersgd`: columns of the factors."""

    topk_fraction: float = ruled(0.01, FRACTION, TOPK)
    """`topk`: part of each bucket's values that is sent."""

    overlap: Overlap = "auto"
    """`mpi`: sum gradients while the backward pass still makes others. `auto`: where a network is
    slower than the processor, not where ranks share memory or cores."""

    bucket_mb: float | None = ruled(None, POSITIVE, BUCKETED)
    """`mpi`: megabytes of gradients that are summed at a time when they overlap or are compressed.
    Default: as cache and network allow."""

    link: str | None = None
    """Slow the ranks' messages down to such a link, as 1Gbit/s,1ms (bandwidth, latency): every
    rank then counts as a node of its own."""


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options of `local`."""

    local_steps: int = ruled(16, AT_LEAST_ONE)
    """`local`: steps of each rank by itself between two averages."""

    outer_optimizer: OuterOptimizer = "average"
    """`local`: what is done with the average: taken (local SGD), or as a Nesterov step (DiLoCo)."""

    outer_lr: float = ruled(0.7, POSITIVE)
    """`local` with --outer-optimizer nesterov: its learning rate."""

    outer_momentum: float = ruled(0.9, BELOW_ONE)
    """`local` with --outer-optimizer nesterov: its momentum."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of `server`."""

    servers: int = ruled(1, AT_LEAST_ONE)
    """`server`: ranks that each hold a shard of the parameters; the others are workers."""

    server_mode: ServerMode = "synchronous"
    """`server`: all workers in step, each at its own pace, or no one further ahead than
    --staleness."""

    staleness: int = ruled(4, NOT_NEGATIVE)
    """`server` with --server-mode bounded: steps that the fastest worker may be ahead."""

    def num_workers(self, ranks: int) -> int:
        """Return the ranks that are no servers. Raises: UserError when there are none."""
        if self.servers >= ranks:
            raise UserError(
                f"--servers {self.servers} of {ranks} ranks leaves no worker: "
                f"use --ranks {self.servers + 1} or more, or fewer servers"
            )
        return ranks - self.servers
