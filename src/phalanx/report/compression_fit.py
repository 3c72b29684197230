"""The time of a step as a function of the link's bandwidth, fitted to what was measured. Pure.

    step = base of the compressor + slope · bytes it sends ÷ bandwidth

The base holds computing and coding; the slope, one for all, is 1 where sending is not hidden and
costs nothing beside the link.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from phalanx.report.cells import Row


@dataclass(frozen=True, kw_only=True)
class Fit:
    bases_s: Mapping[str, float]
    sent_bytes: Mapping[str, float]
    slope: float
    worst: float
    """The largest difference from a measured step, as a part of it."""

    def step_s(self, compressor: str, bandwidth_bytes_per_s: float) -> float:
        wire_s = self.sent_bytes[compressor] / bandwidth_bytes_per_s
        return self.bases_s[compressor] + self.slope * wire_s

    def pays(self, compressor: str, against: str) -> str | None:
        """Return when a compressor pays, in words; None where nothing is known of it."""
        if not {compressor, against} <= set(self.bases_s):
            return None
        below = self.break_even_bandwidth(compressor, against)
        if below is None:
            return "never"
        return "always" if math.isinf(below) else f"below {bandwidth_text(below)}"

    def price(self, compressor: str, against: str) -> str:
        """Return when a compressor pays, and why; empty where nothing is known of it."""
        pays = self.pays(compressor, against)
        if pays is None:
            return ""
        added_ms = 1e3 * (self.bases_s[compressor] - self.bases_s[against])
        return {
            "never": "pays on no link, it sends no fewer bytes",
            "always": f"pays on any link, a step without its sending takes {-added_ms:.2f} ms less",
        }.get(pays, f"pays {pays}, it costs {added_ms:.2f} ms per step")

    def break_even_bandwidth(self, compressor: str, against: str) -> float | None:
        """The bandwidth in bytes per second below which steps are shorter; infinite where they
        always are, None where they never are."""
        saved_bytes = self.sent_bytes[against] - self.sent_bytes[compressor]
        added_s = self.bases_s[compressor] - self.bases_s[against]
        if saved_bytes <= 0 or self.slope <= 0:
            return None if added_s >= 0 else math.inf
        return self.slope * saved_bytes / added_s if added_s > 0 else math.inf


def fit_cells(cells: Sequence[Row]) -> Fit | None:
    """Fit the cells whose bandwidth and bytes are known, by least squares of the relative
    differences; None with fewer than two bandwidths."""
    known = [cell for cell in cells if cell["bandwidth"] and cell["sent_bytes"]]
    rates: dict[str, set[float]] = {}
    for cell in known:
        rates.setdefault(cell["compressor"], set()).add(cell["bandwidth"])
    names = [name for name, of_name in rates.items() if len(of_name) > 1]
    points = [cell for cell in known if cell["compressor"] in names]
    if not points:
        return None
    terms = [
        [*(cell["compressor"] == name for name in names), cell["sent_bytes"] / cell["bandwidth"]]
        for cell in points
    ]
    system = np.array(terms, float) / np.array([[cell["step_s"]] for cell in points])
    found = np.linalg.lstsq(system, np.ones(len(points)))[0]
    *bases_s, slope = map(float, found)
    return Fit(
        bases_s=dict(zip(names, bases_s, strict=True)),
        sent_bytes={cell["compressor"]: cell["sent_bytes"] for cell in reversed(points)},
        slope=slope,
        worst=float(np.abs(system @ found - 1).max()),
    )


_UNITS = {"kbit/s": 1e3 / 8, "mbit/s": 1e6 / 8, "gbit/s": 1e9 / 8}


def bandwidth_of(place: str) -> float | None:
    """Return the bytes per second of a link such as 1Gbit/s,1ms; None for memory."""
    for word in place.split(","):
        found = re.fullmatch(r"\s*([0-9.]+)\s*([kMG]bit/s)\s*", word, re.IGNORECASE)
        if found:
            return float(found[1]) * _UNITS[found[2].lower()]
    return None


def bandwidth_text(bytes_per_s: float) -> str:
    """Format a bandwidth in bits, as usual for links: 1.2 Gbit/s, 850 Mbit/s."""
    bits = 8 * bytes_per_s
    for unit, name in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= unit:
            return f"{bits / unit:.3g} {name}"
    return f"{bits / 1e3:.3g} kbit/s"
