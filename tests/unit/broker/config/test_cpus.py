"""The CPUs of this process, by cgroup quota and affinity."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.config import available_cpus, default_role_count

# -- CPUs


def cgroup(tmp_path: Path, lines: str, **files: str) -> tuple[Path, Path]:
    proc, sysfs = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(lines)
    for name, content in files.items():
        path = sysfs / name.replace("__", "/").replace("cpu_max", "cpu.max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return proc, sysfs


@pytest.mark.parametrize(
    ("lines", "files", "quota"),
    [
        ("0::/a/b\n", {"a__b__cpu_max": "50000 100000\n"}, 0.5),
        ("0::/a/b\n", {"a__b__cpu_max": "max 100000\n", "a__cpu_max": "25000 100000\n"}, 0.25),
        ("0::/gone/in/container\n", {"cpu_max": "10000 100000\n"}, 0.1),
        ("0::/\n", {"cpu_max": "garbage\n"}, None),
        ("0::/\n", {"cpu_max": "5 0\n"}, None),
        ("0::/\n", {}, None),
        ("", {}, None),
    ],
)
def test_a_quota_of_cgroup_version_2_binds(tmp_path, lines, files, quota):
    proc, sysfs = cgroup(tmp_path, lines, **files)
    affinity = available_cpus(proc=tmp_path, sysfs=tmp_path)
    assert available_cpus(proc=proc, sysfs=sysfs) == (quota if quota is not None else affinity)


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_a_quota_of_cgroup_version_1_binds(tmp_path, mount):
    proc, sysfs = cgroup(tmp_path, "4:memory:/x\n3:cpu,cpuacct:/x\n")
    (sysfs / mount / "x").mkdir(parents=True)
    (sysfs / mount / "x" / "cpu.cfs_quota_us").write_text("20000\n")
    (sysfs / mount / "x" / "cpu.cfs_period_us").write_text("100000\n")
    (sysfs / mount / "cpu.cfs_quota_us").write_text("-1\n")
    (sysfs / mount / "cpu.cfs_period_us").write_text("100000\n")
    assert available_cpus(proc=proc, sysfs=sysfs) == 0.2


def test_there_is_always_one_of_each_role():
    assert default_role_count() >= 1
