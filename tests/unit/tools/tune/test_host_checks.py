"""`kproc tune list` judges what it reads from /proc and /sys; here those are a directory of made-up files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.tools.tune.host import Host, PythonBuild, mount_of
from kproc.tools.tune.host_checks import CHECKS, CheckResult, check_host

GOOD = {
    "proc/sys/net/core/somaxconn": "4096\n",
    "proc/sys/net/ipv4/tcp_max_syn_backlog": "2048\n",
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never] deny force\n",
    "proc/sys/vm/swappiness": "1\n",
    "proc/meminfo": "MemTotal: 100 kB\nSwapTotal:  2048 kB\n",
    "proc/sys/vm/dirty_background_ratio": "5\n",
    "proc/sys/vm/dirty_ratio": "60\n",
    "proc/sys/vm/dirty_background_bytes": "0\n",
    "proc/sys/vm/dirty_bytes": "0\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/module/page_reporting/parameters/page_reporting_order": "11\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "proc/self/cgroup": "0::/a/b\n",
    "sys/fs/cgroup/a/b/cpu.stat": "usage_usec 5\nnr_periods 1000\nnr_throttled 3\n",
    "sys/fs/cgroup/a/b/memory.max": "max\n",
    "sys/fs/cgroup/a/memory.max": f"{8 << 30}\n",
    "sys/fs/cgroup/a/b/pids.max": "4096\n",
    "proc/self/mountinfo": (
        "22 1 0:1 / / rw,relatime - ext4 /dev/vda rw\n"
        "23 22 0:2 / /srv/logs\\040here rw,noatime shared:1 - xfs /dev/vdb rw,attr2\n"
    ),
}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """`host(changes)` with GOOD files, changed; a value of None leaves the file out."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2, 3})

    def make(changes: dict[str, str | None] | None = None, **more) -> Host:
        for name, text in {**GOOD, **(changes or {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
        options = {
            "data": Path("/srv/logs here/kproc"),
            "files_limit": (1024, 524288),
            "free_bytes": lambda _path: 9 << 30,
            "memfd": lambda: None,
            "python": PythonBuild("3.12.1", "'--enable-optimizations' '--with-lto'", "/opt/python", False),
        }
        return Host(root=tmp_path, **{**options, **more})

    return make


def row(host: Host, name: str):
    return next(each for each in check_host(host) if each.name == name)


def test_a_good_host_has_nothing_to_change(host):
    assert [(each.name, each.value) for each in check_host(host()) if each.verdict is not CheckResult.OK] == []


@pytest.mark.parametrize(
    ("name", "path", "text", "shown"),
    [
        ("net.core.somaxconn", "proc/sys/net/core/somaxconn", "128", "128"),
        ("net.ipv4.tcp_max_syn_backlog", "proc/sys/net/ipv4/tcp_max_syn_backlog", "512", "512"),
        (
            "net.ipv4.ip_local_port_range",
            "proc/sys/net/ipv4/ip_local_port_range",
            "50000 59999",
            "50000-59999 (10000)",
        ),
        ("thp.enabled", "sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never", "always"),
        ("thp.shmem_enabled", "sys/kernel/mm/transparent_hugepage/shmem_enabled", "never [always]", "always"),
        ("vm.swappiness", "proc/sys/vm/swappiness", "60", "60"),
        ("vm.dirty_background_ratio", "proc/sys/vm/dirty_background_ratio", "40", "40 %"),
        ("vm.dirty_ratio", "proc/sys/vm/dirty_ratio", "10", "10 %"),
        (
            "cpu.governor",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
            "powersave",
            "powersave",
        ),
        (
            "mm.page_reporting",
            "sys/module/page_reporting/parameters/page_reporting_order",
            "9",
            "on, from order 9",
        ),
        (
            "clock.source",
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet",
            "hpet",
        ),
        ("cpu.available", "sys/fs/cgroup/a/cpu.max", "150000 100000", "1.5"),
        (
            "cgroup.cpu.throttled",
            "sys/fs/cgroup/a/b/cpu.stat",
            "nr_periods 200\nnr_throttled 50",
            "25 % of 200 periods",
        ),
        ("cgroup.memory", "sys/fs/cgroup/a/memory.max", str(256 << 20), "256 MiB"),
        ("cgroup.pids", "sys/fs/cgroup/a/b/pids.max", "64", "64"),
        (
            "data.filesystem",
            "proc/self/mountinfo",
            "1 0 0:1 / / rw,relatime - overlay overlay rw",
            "overlay at /",
        ),
        (
            "data.mount",
            "proc/self/mountinfo",
            "1 0 0:1 / / rw,relatime - ext4 /dev/vda rw,nobarrier",
            "nobarrier",
        ),
        ("data.mount", "proc/self/mountinfo", "1 0 0:1 / / rw,sync,noatime - ext4 /dev/vda rw", "sync"),
    ],
)
def test_each_value_that_is_not_as_wanted_is_named(host, name, path, text, shown):
    found = row(host({path: text}), name)
    assert (found.value, found.verdict) == (shown, CheckResult.CHANGE)
    assert found.why
    assert found.change


def test_unreadable_host_fact_is_unknown(host):
    found = row(host({"proc/sys/net/core/somaxconn": None}), "net.core.somaxconn")
    assert found.verdict is CheckResult.UNKNOWN
    garbage = row(host({"proc/sys/net/core/somaxconn": "many"}), "net.core.somaxconn")
    assert garbage.verdict is CheckResult.UNKNOWN
    assert row(host({"proc/self/mountinfo": None}), "data.filesystem").verdict is CheckResult.UNKNOWN


def test_swappiness_does_not_matter_without_swap(host):
    files = {"proc/sys/vm/swappiness": "60", "proc/meminfo": "SwapTotal:        0 kB\n"}
    assert row(host(files), "vm.swappiness").verdict is CheckResult.OK


def test_byte_limits_of_dirty_pages_win_over_ratios(host):
    files = {"proc/sys/vm/dirty_background_ratio": "0", "proc/sys/vm/dirty_background_bytes": str(64 << 20)}
    found = row(host(files), "vm.dirty_background_ratio")
    assert found.value.startswith("64 MiB")


def test_limits_of_cgroup_version_1(host):
    files = {
        "proc/self/cgroup": "5:memory:/box\n3:cpu,cpuacct:/box\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(100 << 20),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/cpu/box/cpu.stat": "nr_periods 10\nnr_throttled 10\n",
    }
    made = host(files)
    assert row(made, "cgroup.memory").value == "100 MiB"
    assert row(made, "cgroup.cpu.throttled").verdict is CheckResult.CHANGE


def test_hard_limit_counts_because_broker_raises_soft_one(host):
    assert row(host(files_limit=(1024, 65536)), "files.open").verdict is CheckResult.OK
    assert row(host(files_limit=(1024, 4096)), "files.open").verdict is CheckResult.CHANGE
    assert row(host(files_limit=(1024, -1)), "files.open").verdict is CheckResult.OK


def test_the_deepest_mount_with_a_blank_in_its_name_is_found(host):
    mount = mount_of(host(), Path("/srv/logs here/kproc"))
    assert mount is not None
    assert (mount.point, mount.kind) == ("/srv/logs here", "xfs")
    assert "noatime" in mount.options


@pytest.mark.parametrize(
    ("build", "verdict", "shown"),
    [
        (
            PythonBuild("3.13.0", "'--enable-optimizations'", "/opt", False),
            CheckResult.OK,
            "3.13.0, with profiles",
        ),
        (
            PythonBuild("3.11.7", "'--enable-shared'", "/opt", False),
            CheckResult.CHANGE,
            "3.11.7, without profiles",
        ),
        (
            PythonBuild("3.11.2", "'--enable-shared'", "/usr", False),
            CheckResult.OK,
            "3.11.2, of the distribution",
        ),
        (PythonBuild("3.12.1", "", "/usr", True), CheckResult.CHANGE, "3.12.1, a debug build"),
        (PythonBuild("3.12.1", None, "/opt", False), CheckResult.UNKNOWN, "not shown here"),
    ],
)
def test_host_check_of_the_python_build(host, build, verdict, shown):
    found = row(host(python=build), "python.build")
    assert (found.value, found.verdict) == (shown, verdict)


def test_a_memfd_that_cannot_be_made_is_said(host):
    assert row(host(memfd=lambda: "refused: Too many open files"), "memfd").verdict is CheckResult.CHANGE
    assert row(host({"proc/sys/vm/memfd_noexec": "2"}), "memfd").verdict is CheckResult.CHANGE


def test_the_real_host_can_be_asked():
    rows = check_host()
    assert [each.name for each in rows] == [check.name for check in CHECKS]
    assert next(each for each in rows if each.name == "memfd").verdict is CheckResult.OK
