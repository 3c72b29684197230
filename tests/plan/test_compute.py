"""What a rank takes, between and beyond the measured batches."""

import msgspec
import pytest

from phalanx.plan.compute import compute_time, late_share, peak_bytes
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


def test_ranks_at_once_lie_between_the_measured_numbers_next_to_them() -> None:
    """Memory that two ranks do not fill may be too slow for four."""
    took = {1: 1.0, 4: 1.3, 64: 7.3}  # by made_profile: 1 + 0.1 (k - 1)
    known = [steps(k, n) for k in took for n in (64, 1024)]
    measured = msgspec.structs.replace(profile(), times=known)
    alone_s = compute_time(measured, 64, 1, 1).own_s
    for number, factor in {**took, 2: 1.1, 10: 1.9, 80: 7.3}.items():
        assert compute_time(measured, 64, number, 1).own_s == pytest.approx(factor * alone_s)


def test_one_batch_of_several_at_once_is_taken_for_a_multiple_of_the_line_of_one() -> None:
    known = [steps(1, 64), steps(1, 1024), steps(2, 512)]
    measured = msgspec.structs.replace(profile(), times=known)
    for samples in (64, 512, 2048):
        alone_s, both_s = (compute_time(measured, samples, k, 1).own_s for k in (1, 2))
        assert both_s == pytest.approx(1.1 * alone_s)
    only = msgspec.structs.replace(profile(), times=[steps(1, 64)])
    assert compute_time(only, 128, 1, 1).own_s == pytest.approx(2 * steps(1, 64).median_s)


@pytest.mark.parametrize(
    ("micro_batches", "parts", "samples"),
    [(None, 1, 1024), (None, 3, 342), (6, 1, 1024), (6, 2, 512), (6, 4, 342), (6, 6, 171)],
)
def test_the_rank_with_most_samples(micro_batches: int | None, parts: int, samples: int) -> None:
    """4 ranks share 6 micro-batches: a step is as long as that of those that have two."""
    known = msgspec.structs.replace(profile(), micro_batches=micro_batches)
    assert known.samples_of_rank(parts) == samples


def test_ranks_that_seldom_wait_are_late_by_what_lasts() -> None:
    """A neighbour slows a core down for seconds, so its delays do not cancel within some steps; it
    was taken that they do, and steps of local SGD came out a tenth too short."""
    chance, lasting = [1.0, 1.2] * 64, [1.0] * 64 + [1.2] * 64
    one = steps(1, 64)
    by_chance, by_phase = (msgspec.structs.replace(one, step_s=[s]) for s in (chance, lasting))
    middle_s = by_chance.median_s
    assert by_phase.median_s == middle_s == pytest.approx(1.1)
    assert late_share(by_phase, 4, 16) == pytest.approx(1.2 / middle_s - 1)
    assert late_share(by_chance, 4, 16) == pytest.approx(0.0, abs=1e-12)
    assert late_share(by_chance, 4) == late_share(by_phase, 4) > 0.08
    assert late_share(by_phase, 4, 1000) == late_share(by_phase, 4), "runs are shorter"
