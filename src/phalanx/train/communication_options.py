"""Options of communication, validated where they are made. No torch, no MPI.

Annotations here are objects, not strings: see `parallel_options.py`.
"""

from dataclasses import dataclass
from typing import Literal

from phalanx.comm.link import Link
from phalanx.errors import UserError

Compression = Literal["none", "fp16", "bf16", "int8", "powersgd", "topk"]
Overlap = Literal["auto", "on", "off"]
Autocast = Literal["none", "bf16"]


@dataclass(frozen=True, kw_only=True)
class CommunicationOptions:
    """Options of communication: compression, overlap, bucket size, emulated link."""

    compress: Compression = "none"
    """`mpi`: what is sent in place of float32 gradients: half types, `int8` or the largest `topk`
    with error feedback, or a low rank (`powersgd`)."""

    powersgd_rank: int = 4
    """`powersgd`: columns of the factors."""

    topk_fraction: float = 0.01
    """`topk`: part of each bucket's values that is sent."""

    autocast: Autocast = "none"
    """Arithmetic of forward and backward passes where that is safe: `bf16`, or as --dtype."""

    overlap: Overlap = "auto"
    """`mpi`: sum gradients while the backward pass still makes others. `auto`: where a network is
    slower than the processor, not where ranks share memory or cores."""

    bucket_mb: float | None = None
    """`mpi`: megabytes of gradients that are summed at a time when they overlap or are compressed.
    Default: as cache and network allow."""

    link: str | None = None
    """Slow the ranks' messages down to such a link, as 1Gbit/s,1ms (bandwidth, latency): every
    rank then counts as a node of its own."""

    trace: bool = False
    """Record what every rank does when, and write one trace of all for Perfetto."""

    def check_communication(self) -> None:
        """Raise UserError for values that no run could use."""
        if self.powersgd_rank < 1:
            raise UserError(f"--powersgd-rank must be at least 1, not {self.powersgd_rank}")
        if not 0 < self.topk_fraction <= 1:
            raise UserError(f"--topk-fraction must be in (0, 1], not {self.topk_fraction}")
        if self.bucket_mb is not None and not self.bucket_mb > 0:
            raise UserError(f"--bucket-mb must be positive, not {self.bucket_mb}")
        if self.link is not None:
            Link.parse(self.link)
