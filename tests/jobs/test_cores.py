"""Control groups of both versions, written into a folder."""

import pytest

from phalanx.jobs.cores import (
    CpuQuota,
    bound_cores,
    cpu_quota,
    memory_limit_bytes,
    shared_cores,
    usable_cores,
)


def quota_cores(folder, own_cgroup):
    quota = cpu_quota(folder, own_cgroup)
    return None if quota is None else quota.cores


def test_this_process_has_cores():
    assert 1 <= usable_cores() <= len(bound_cores())


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000", None), ("150000 100000", 1.5), ("400000 100000\n", 4.0)]
)
def test_version_2(tmp_path, text, quota):
    (tmp_path / "cpu.max").write_text(text)
    assert quota_cores(tmp_path, tmp_path / "none") == quota


def test_the_tightest_limit_on_the_way_up_holds(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text("50000 100000")
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000")
    (tmp_path / "own").write_text("0::/a/b\n")
    assert quota_cores(tmp_path, tmp_path / "own") == 0.5


@pytest.mark.parametrize(("granted", "quota"), [("-1", None), ("250000", 2.5)])
def test_version_1(tmp_path, granted, quota):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(granted)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert quota_cores(tmp_path, tmp_path / "none") == quota


def test_no_control_groups(tmp_path):
    assert quota_cores(tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize("controller", ["cpu", "cpu,cpuacct"])
def test_version_1_in_a_nested_group(tmp_path, controller):
    group = tmp_path / controller / "job" / "step"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("50000")
    (group / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "own").write_text(f"9:memory:/other\n4:{controller}:/job/step\n0::/\n")
    assert quota_cores(tmp_path, tmp_path / "own") == 0.5


def test_a_path_of_the_host_means_the_root_in_a_container(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("150000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "own").write_text("4:cpu,cpuacct:/docker/5f3a\n")
    assert quota_cores(tmp_path, tmp_path / "own") == 1.5


@pytest.mark.parametrize(
    ("affinities", "quotas", "cores"),
    [
        ([[0], [1]], [None, None], 2),
        ([[0], [0, 1, 2, 3]], [None, None], 4),
        ([[0], [0]], [None, None], 1),
        # limited together, limited each, and one without a limit
        ([[0, 1, 2, 3]] * 2, [CpuQuota(1.5, "a"), CpuQuota(1.5, "a")], 2),
        ([[0, 1, 2, 3]] * 2, [CpuQuota(1.5, "a"), CpuQuota(1.5, "b")], 3),
        ([[0, 1, 2, 3]] * 2, [CpuQuota(0.1, "a"), None], 4),
        ([[0]], [CpuQuota(0.1, "a")], 1),
    ],
)
def test_processes_of_one_machine_share_the_union_of_their_cores(affinities, quotas, cores):
    assert shared_cores(affinities, quotas) == cores


def test_the_least_memory_of_any_group_holds(tmp_path):
    """Its own in version 2, one above it in version 1; a group without a limit says max."""
    assert memory_limit_bytes(tmp_path, tmp_path / "none") is None
    (tmp_path / "job" / "step").mkdir(parents=True)
    (tmp_path / "job" / "memory.max").write_text("max\n")
    (tmp_path / "job" / "step" / "memory.max").write_text("3000\n")
    (tmp_path / "memory" / "old").mkdir(parents=True)
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("2000\n")
    (tmp_path / "own").write_text("9:memory:/old\n0::/job/step\n")
    assert memory_limit_bytes(tmp_path, tmp_path / "own") == 2000
