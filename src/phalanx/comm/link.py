"""Parameters of an emulated link, slower than the machine's memory.

Pure; `link_emulator.py` delays messages by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.errors import UserError

LINK = "PHALANX_LINK"  # the environment variable by which ranks are told

_UNITS = {"kbit/s": 1e3 / 8, "mbit/s": 1e6 / 8, "gbit/s": 1e9 / 8}
_TIMES = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, kw_only=True)
class Link:
    """An emulated link: each rank's messages leave one after the other, at
    `bandwidth_bytes_per_s`, and arrive `latency_s` later."""

    bandwidth_bytes_per_s: float | None = None
    """None: as fast as it is."""

    latency_s: float = 0.0

    @classmethod
    def parse(cls, text: str, *, given_by: str = "--link") -> Link:
        """`1Gbit/s,1ms`, or one of both. Raises: UserError for anything else."""
        bandwidths, latencies = [], []
        for word in text.split(","):
            found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-zµ/]+)\s*", word)
            value, unit = (float(found[1]), found[2].lower()) if found else (0.0, "")
            if value > 0 and unit in _UNITS:
                bandwidths.append(value * _UNITS[unit])
            elif value > 0 and unit in _TIMES:
                latencies.append(value * _TIMES[unit])
            else:
                raise UserError(
                    f"{given_by} {text}: {word!r} is neither a bandwidth nor a latency: use the "
                    "form 1Gbit/s,1ms"
                )
        if len(bandwidths) > 1 or len(latencies) > 1:
            raise UserError(
                f"{given_by} {text}: give one bandwidth and one latency, such as 1Gbit/s,1ms"
            )
        return cls(
            bandwidth_bytes_per_s=bandwidths[0] if bandwidths else None,
            latency_s=latencies[0] if latencies else 0.0,
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Link | None:
        """Read `PHALANX_LINK`; None where it is not set. Raises: as `parse`."""
        text = environ.get(LINK)
        return cls.parse(text, given_by=f"{LINK}:") if text else None
