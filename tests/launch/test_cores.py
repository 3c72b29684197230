"""Control groups of both versions, written into a folder."""

import pytest

from phalanx.launch.cores import affinity_cores, cgroup_quota, usable_cores


def test_this_process_has_cores():
    assert 1 <= usable_cores() <= affinity_cores()


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000", None), ("150000 100000", 1.5), ("400000 100000\n", 4.0)]
)
def test_version_2(tmp_path, text, quota):
    (tmp_path / "cpu.max").write_text(text)
    assert cgroup_quota(tmp_path, tmp_path / "none") == quota


def test_the_tightest_limit_on_the_way_up_holds(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text("50000 100000")
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000")
    (tmp_path / "own").write_text("0::/a/b\n")
    assert cgroup_quota(tmp_path, tmp_path / "own") == 0.5


@pytest.mark.parametrize(("granted", "quota"), [("-1", None), ("250000", 2.5)])
def test_version_1(tmp_path, granted, quota):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(granted)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cgroup_quota(tmp_path, tmp_path / "none") == quota


def test_no_control_groups(tmp_path):
    assert cgroup_quota(tmp_path, tmp_path / "none") is None
