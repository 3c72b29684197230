"""A profile is cut down to what fits, asks for as much a second as before, and says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.bench.io.scaling import PROFILES, read_profile, scale_workload
from phalanx.records.io import Profile

profiles = st.builds(
    Profile,
    name=st.just("p"),
    source=st.just(""),
    num_files=st.integers(1, 10**6),
    samples_per_file=st.integers(1, 10**5),
    sample_bytes=st.integers(8, 10**9),
    batch_size=st.integers(1, 1000),
    compute_s=st.fixed_dictionaries({"a100": st.floats(1e-4, 10.0)}),
)


@given(profiles, st.integers(2**16, 2**32))
def test_what_fits(profile: Profile, data_bytes: int) -> None:
    work = scale_workload(profile, "a100", data_bytes=data_bytes)
    assert work.num_samples % work.batch_size == 0
    assert 1 <= work.steps <= work.num_samples // work.batch_size
    one_batch = work.batch_size * work.sample_bytes
    assert work.num_samples * work.sample_bytes <= max(data_bytes, one_batch)
    asked = profile.batch_size * profile.sample_bytes / profile.compute_s["a100"]
    assert work.demand_bytes_per_s == pytest.approx(asked, rel=0.1)


def test_unet3d_keeps_its_demand_with_smaller_samples() -> None:
    work = scale_workload(read_profile("unet3d"), "a100", data_bytes=2**28)
    assert (work.num_samples, work.steps, work.sample_bytes) == (112, 16, 2_290_635)
    assert work.compute_s == pytest.approx(0.636 / 64)
    assert any("1/64 of 146,600,628" in text for text in work.scaled)
    assert any("47%" in text for text in work.scaled)


@pytest.mark.parametrize("name", PROFILES)
def test_everything_that_differs_is_told(name: str) -> None:
    profile = read_profile(name)
    accelerator = next(iter(profile.compute_s))
    work = scale_workload(profile, accelerator, data_bytes=2**26)
    told = "; ".join(work.scaled)
    assert f"{work.num_samples:,} samples per rank" in told
    assert f"{work.steps:,} steps per epoch" in told
    assert ("1/" in told) == (work.sample_bytes != profile.sample_bytes)


def test_nothing_is_told_of_a_profile_as_it_is() -> None:
    profile = Profile(
        name="p",
        source="",
        num_files=4,
        samples_per_file=5,
        sample_bytes=100,
        batch_size=5,
        compute_s={"a100": 0.5},
    )
    work = scale_workload(profile, "a100", data_bytes=2**20)
    assert (work.num_samples, work.steps, work.compute_s, work.scaled) == (20, 4, 0.5, ())


def test_what_is_asked_for_is_done() -> None:
    work = scale_workload(
        read_profile("resnet50"),
        "h100",
        data_bytes=2**28,
        steps=3,
        batch_size=10,
        sample_scale=0.5,
        compute_scale=2.0,
    )
    assert (work.num_samples, work.steps, work.batch_size) == (30, 3, 10)
    assert work.sample_bytes == 57_330
    assert work.compute_s == pytest.approx(0.224 * 0.5 * 10 / 400 * 2)
    assert "batches of 10, not 400" in work.scaled
