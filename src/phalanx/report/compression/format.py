"""Names of compressors and bandwidths in sentences. Pure."""

from __future__ import annotations

import math

from phalanx.report.compression.study_data import NONE

_NAMES = {NONE: "float32", "powersgd": "PowerSGD", "topk": "top-k"}


def compressor_phrase(compressor: str) -> str:
    return _NAMES.get(compressor, compressor)


def bandwidth(bytes_per_s: float) -> str:
    """Format a bandwidth in bits, as usual for links: 1.2 Gbit/s, 850 Mbit/s."""
    bits = 8 * bytes_per_s
    for unit, name in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= unit:
            return f"{bits / unit:.3g} {name}"
    return f"{bits / 1e3:.3g} kbit/s"


def break_even_text(bytes_per_s: float | None) -> str:
    """Format the result of `CompressionStudyData.break_even_bandwidth`."""
    if bytes_per_s is None:
        return "never"
    return "always" if math.isinf(bytes_per_s) else f"below {bandwidth(bytes_per_s)}"
