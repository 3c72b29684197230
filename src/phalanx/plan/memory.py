"""Memory of a rank's process by its samples, from runs of one rank. Pure."""

from __future__ import annotations

from phalanx.plan.compute import Line
from phalanx.plan.profile import ProgramProfile


def memory_line(profile: ProgramProfile) -> Line | None:
    """Return the peak of a rank alone: a fixed part and one per sample; None: not measured.

    The slope is that between the measured batches, else the tensors that the layers keep.
    """
    known = sorted((t.samples, t.peak_bytes) for t in profile.times if t.peak_bytes)
    if not known:
        return None
    (low, low_bytes), (high, high_bytes) = known[0], known[-1]
    slope = float(sum(layer.saved_bytes for layer in profile.layers))
    if high > low:
        slope = max(0.0, (high_bytes - low_bytes) / (high - low))
    return Line(high_bytes - slope * high, slope)
