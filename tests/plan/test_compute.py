"""What a rank takes, between and beyond the measured batches."""

import msgspec

from phalanx.plan.compute import peak_bytes
from phalanx.plan.profile import ProgramProfile
from tests.plan.made_profile import profile, steps


def with_peaks(peaks: dict[int, int], saved_bytes: int = 0) -> ProgramProfile:
    """peaks: by samples."""
    times = [
        msgspec.structs.replace(steps(1, samples), peak_bytes=peak)
        for samples, peak in peaks.items()
    ]
    return msgspec.structs.replace(profile(), times=times, saved_bytes=saved_bytes)


def test_peak_memory_by_batch() -> None:
    assert peak_bytes(profile(), 64) is None
    assert peak_bytes(with_peaks({64: 400, 1024: 1360}, saved_bytes=5), 100) == 436
    assert peak_bytes(with_peaks({64: 400, 1024: 399}), 100) == 399, "noise"
    assert peak_bytes(with_peaks({64: 400}, saved_bytes=3), 32) == 304
