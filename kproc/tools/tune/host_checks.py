"""Checks of the host's settings that matter to a broker, for `kproc tune list`.

The checks change nothing and need no root. If the kernel or container hides a file, the verdict is "unknown" and never
"ok". A check states a cost only if it was measured or is a documented rule of the kernel.
"""

from __future__ import annotations

import enum
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kproc.broker.config.cpus import available_cpus
from kproc.tools.tune.host import Host, mount_of

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_LOCAL: Final = ("ext4", "xfs", "btrfs", "zfs", "f2fs", "ext3", "ext2", "bcachefs")


class CheckResult(enum.StrEnum):
    """The verdict of a check of the host."""

    OK = "ok"
    CHANGE = "change"
    UNKNOWN = "unknown"


class CheckedValue(NamedTuple):
    """The value that a check found, formatted for users, and its verdict."""

    value: str
    verdict: CheckResult


@dataclass(frozen=True)
class HostCheck:
    """A check of the host: `read` reads and judges the value; the other fields are texts for users."""

    name: str
    read: Callable[[Host], CheckedValue]
    wanted: str
    why: str
    change: str


class Row(NamedTuple):
    """The result of a check of the host, as `kproc tune list` shows it."""

    name: str
    value: str
    wanted: str
    verdict: CheckResult
    why: str
    change: str


def check_host(host: Host | None = None) -> list[Row]:
    """Run every check on this host and return the rows in the order of CHECKS."""
    host = host or Host()
    rows = []
    for check in CHECKS:
        value, verdict = check.read(host)
        rows.append(Row(check.name, value, check.wanted, verdict, check.why, check.change))
    return rows


def _judge(value: str, is_wanted: bool) -> CheckedValue:
    return CheckedValue(value, CheckResult.OK if is_wanted else CheckResult.CHANGE)


_NOT_SHOWN: Final = CheckedValue("not shown here", CheckResult.UNKNOWN)


def _at_least(path: str, least: int) -> Callable[[Host], CheckedValue]:
    def read(host: Host) -> CheckedValue:
        value = host.number(path)
        return _NOT_SHOWN if value is None else _judge(str(value), value >= least)

    return read


def _open_files(host: Host) -> CheckedValue:
    soft, hard = host.files_limit
    endless = resource.RLIM_INFINITY
    shown = f"{soft}, hard {'unlimited' if hard == endless else hard}"
    return _judge(shown, hard == endless or hard >= 65_536)


def _local_ports(host: Host) -> CheckedValue:
    words = (host.text("proc/sys/net/ipv4/ip_local_port_range") or "").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return _NOT_SHOWN
    count = int(words[1]) - int(words[0]) + 1
    return _judge(f"{words[0]}-{words[1]} ({count})", count >= 20_000)


def _huge_pages(path: str) -> Callable[[Host], CheckedValue]:
    def read(host: Host) -> CheckedValue:
        text = host.text(path)
        if text is None:
            return CheckedValue("no such thing in this kernel", CheckResult.OK)
        # The kernel's file marks the chosen mode by brackets, as in: always [madvise] never.
        chosen = text.partition("[")[2].partition("]")[0]
        return _judge(chosen, chosen not in ("always", "force")) if chosen else _NOT_SHOWN

    return read


def _swappiness(host: Host) -> CheckedValue:
    value = host.number("proc/sys/vm/swappiness")
    if value is None:
        return _NOT_SHOWN
    swap = next(
        (line for line in (host.text("proc/meminfo") or "").splitlines() if line.startswith("SwapTotal:")), ""
    )
    # Without swap the kernel cannot swap a role out, whatever the setting says.
    if swap.split()[1:2] == ["0"]:
        return CheckedValue(f"{value}, no swap", CheckResult.OK)
    return _judge(str(value), value <= 10)


def _dirty(kind: str, is_wanted: Callable[[int], bool]) -> Callable[[Host], CheckedValue]:
    def read(host: Host) -> CheckedValue:
        share = host.number(f"proc/sys/vm/{kind}_ratio")
        # Linux uses either vm.dirty_*bytes or vm.dirty_*ratio, whichever was set last. The other one reads as 0.
        count = host.number(f"proc/sys/vm/{kind}_bytes")
        if count:
            return CheckedValue(f"{count // _MIB} MiB by {kind}_bytes", CheckResult.OK)
        return _NOT_SHOWN if share is None else _judge(f"{share} %", is_wanted(share))

    return read


def _governor(host: Host) -> CheckedValue:
    folder = host.root / "sys/devices/system/cpu"
    kinds = {
        text
        for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor")
        if (text := host.text(str(path.relative_to(host.root))))
    }
    if not kinds:
        return CheckedValue("none here: the host of this virtual machine decides", CheckResult.OK)
    return _judge(", ".join(sorted(kinds)), kinds <= {"performance", "schedutil"})


def _page_reporting(host: Host) -> CheckedValue:
    order = host.number("sys/module/page_reporting/parameters/page_reporting_order")
    if order is None:
        return CheckedValue("no such thing in this kernel", CheckResult.OK)
    # page_reporting_order: the kernel reports free pages of this order and above to the hypervisor. The largest order
    # is 10, so a greater value disables reporting. Without a balloon device the value is -1.
    return _judge("off" if not 0 <= order <= 10 else f"on, from order {order}", not 0 <= order <= 10)


def _clock(host: Host) -> CheckedValue:
    name = host.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
    if name is None:
        return _NOT_SHOWN
    return _judge(name, name not in ("hpet", "acpi_pm", "jiffies", "pit", "xen", "refined-jiffies"))


def _cpus(host: Host) -> CheckedValue:
    cpus = available_cpus(proc=host.root / "proc", sysfs=host.root / "sys/fs/cgroup")
    return _judge(f"{cpus:g}", cpus >= 2 and cpus == int(cpus))


def _throttled(host: Host) -> CheckedValue:
    texts = host.cgroup("cpu", "cpu.stat")
    for text in texts:
        fields = dict(line.split(None, 1) for line in text.splitlines() if " " in line)
        periods, throttled = int(fields.get("nr_periods", 0)), int(fields.get("nr_throttled", 0))
        if periods and throttled > periods / 100:
            return CheckedValue(f"{100 * throttled / periods:.0f} % of {periods} periods", CheckResult.CHANGE)
    return CheckedValue("at most 1 % of the periods, or no quota", CheckResult.OK) if texts else _NOT_SHOWN


def _limit(
    controller: str, names: tuple[str, ...], least: int, unit: int, word: str
) -> Callable[[Host], CheckedValue]:
    def read(host: Host) -> CheckedValue:
        limits = [int(text) for text in host.cgroup(controller, *names) if text.isdecimal()]
        # In cgroup version 1 a number close to 2**63 means that there is no limit.
        real = [limit for limit in limits if limit < 1 << 62]
        if not real:
            return CheckedValue("no limit", CheckResult.OK)
        return _judge(f"{min(real) // unit} {word}".strip(), min(real) >= least)

    return read


def _python(host: Host) -> CheckedValue:
    version, configured, prefix, is_debug = host.python
    if is_debug:
        return CheckedValue(f"{version}, a debug build", CheckResult.CHANGE)
    # Accept a distribution's Python: distributions enable profile-guided optimisation in their build scripts, which
    # CONFIG_ARGS does not show on Debian.
    if prefix == "/usr":
        return CheckedValue(f"{version}, of the distribution", CheckResult.OK)
    if configured is None:
        return _NOT_SHOWN
    has_profiles = "--enable-optimizations" in configured
    return _judge(f"{version}, {'with' if has_profiles else 'without'} profiles", has_profiles)


def _memfd(host: Host) -> CheckedValue:
    problem = host.memfd()
    if problem is not None:
        return CheckedValue(problem, CheckResult.CHANGE)
    noexec = host.number("proc/sys/vm/memfd_noexec")
    return _judge(
        "works" if noexec is None else f"works, memfd_noexec {noexec}", noexec is None or noexec < 2
    )


def _filesystem(host: Host) -> CheckedValue:
    mount = mount_of(host, host.data.absolute())
    return _NOT_SHOWN if mount is None else _judge(f"{mount.kind} at {mount.point}", mount.kind in _LOCAL)


def _mount_options(host: Host) -> CheckedValue:
    mount = mount_of(host, host.data.absolute())
    if mount is None:
        return _NOT_SHOWN
    slow = mount.options & {"sync", "dirsync", "data=journal", "strictatime"}
    unsafe = mount.options & {"nobarrier", "barrier=0"}
    if slow or unsafe:
        return CheckedValue(", ".join(sorted(slow | unsafe)), CheckResult.CHANGE)
    times = mount.options & {"noatime", "relatime"}
    return _judge(", ".join(sorted(times)) or "every read updates atime", bool(times))


def _free_space(host: Host) -> CheckedValue:
    directory = host.data.absolute()
    while not directory.exists() and directory != directory.parent:
        # Before the broker's first start the data directory does not exist. Use its parent, which is on the same file
        # system.
        directory = directory.parent
    try:
        free = host.free_bytes(directory)
    except OSError as error:
        return CheckedValue(error.strerror or str(error), CheckResult.UNKNOWN)
    return _judge(f"{free / _GIB:.1f} GiB", free >= 2 * _GIB)


def _sysctl(name: str, value: str) -> str:
    return f"sysctl -w {name}={value}, and a line in /etc/sysctl.d/"


CHECKS: Final = (
    HostCheck(
        "files.open", _open_files, "hard limit >= 65536",
        "a connection costs a descriptor, an open log three; kproc raises its own limit up to the hard one",
        "LimitNOFILE= of the systemd unit, --ulimit nofile= of the container, or limits.conf",
    ),
    HostCheck(
        "net.core.somaxconn", _at_least("proc/sys/net/core/somaxconn", 1024), ">= 1024",
        "it limits socket.listen.backlog.size: if more clients connect at once, the rest are dropped and retry in 1 s",
        _sysctl("net.core.somaxconn", "4096"),
    ),
    HostCheck(
        "net.ipv4.tcp_max_syn_backlog", _at_least("proc/sys/net/ipv4/tcp_max_syn_backlog", 1024), ">= 1024",
        "half-open connections beyond it are dropped, or answered by SYN cookies without TCP options",
        _sysctl("net.ipv4.tcp_max_syn_backlog", "4096"),
    ),
    HostCheck(
        "net.ipv4.ip_local_port_range", _local_ports, ">= 20000 ports",
        "clients on this host use one for each connection, and for 1 minute after its end (TIME_WAIT)",
        _sysctl("net.ipv4.ip_local_port_range", "'15000 60999'"),
    ),
    HostCheck(
        "thp.enabled", _huge_pages("sys/kernel/mm/transparent_hugepage/enabled"), "madvise or never",
        "with `always` a forked role copies 2 MB where it writes a word, and compaction of memory stalls it",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    ),
    HostCheck(
        "thp.shmem_enabled", _huge_pages("sys/kernel/mm/transparent_hugepage/shmem_enabled"), "not always",
        "rings and arenas are shared memory: each would be rounded up to 2 MB",
        "echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    ),
    HostCheck(
        "vm.swappiness", _swappiness, "<= 10, or no swap",
        "a role's page that was swapped out stalls every client of that role while it is read back",
        _sysctl("vm.swappiness", "1"),
    ),
    HostCheck(
        "vm.dirty_background_ratio", _dirty("dirty_background", lambda share: share <= 10), "<= 10 %",
        "above this share the kernel writes dirty pages; if it starts late, it writes in bursts that delay acks=all",
        _sysctl("vm.dirty_background_ratio", "5"),
    ),
    HostCheck(
        "vm.dirty_ratio", _dirty("dirty", lambda share: share >= 20), ">= 20 %",
        "above this share of dirty memory every write waits for the disk: a Handler stalls in the middle of an append",
        _sysctl("vm.dirty_ratio", "60"),
    ),
    HostCheck(
        "python.build", _python, "of the distribution, or built with --enable-optimizations",
        "a shared library without profile-guided optimisation needed twice the cycles for the same Python code",
        "apt's, a container's or uv's; PYTHON_CONFIGURE_OPTS='--enable-optimizations --with-lto' pyenv install",
    ),
    HostCheck(
        "cpu.governor", _governor, "performance or schedutil",
        "others raise the CPU's frequency too late for roles that sleep and wake thousands of times a second",
        "cpupower frequency-set -g performance",
    ),
    HostCheck(
        "mm.page_reporting", _page_reporting, "off",
        "the guest returns free pages to its host, and using one again is slow: 10 us for 4 KB of new page cache",
        "page_reporting.page_reporting_order=11 on the kernel's command line, or a balloon device that does not report",
    ),
    HostCheck(
        "clock.source", _clock, "tsc, kvm-clock or another that needs no system call",
        "every duty cycle reads the clock several times: 40 ns, or 1 us and more through the kernel",
        "clocksource=tsc on the kernel's command line",
    ),
    HostCheck(
        "cpu.available", _cpus, ">= 2 whole CPUs",
        "a Processor and a Handler need one CPU each; a fractional quota stops all roles for a part of each period",
        "--cpus of the container, CPUQuota= of the unit; else kproc.transport=inline saves the handoff",
    ),
    HostCheck(
        "cgroup.cpu.throttled", _throttled, "<= 1 % of the periods",
        "a cgroup that has used up its quota is stopped for the rest of the period of 100 ms, which raises the p99",
        "raise the quota, or take fewer processes: kproc tune",
    ),
    HostCheck(
        "cgroup.memory",
        _limit("memory", ("memory.max", "memory.high", "memory.limit_in_bytes"), 512 * _MIB, _MIB, "MiB"),
        ">= 512 MiB",
        "the page cache of the logs counts, too: a small limit turns cached reads into disk reads",
        "--memory of the container, MemoryMax= of the unit",
    ),
    HostCheck(
        "cgroup.pids", _limit("pids", ("pids.max",), 512, 1, ""), ">= 512",
        "each role is a process, and a Handler has threads for its disk",
        "--pids-limit of the container, TasksMax= of the unit",
    ),
    HostCheck(
        "memfd", _memfd, "can be made, memfd_noexec < 2",
        "rings, arenas and tables are memfds; /dev/shm and its size are not used",
        _sysctl("vm.memfd_noexec", "1"),
    ),
    HostCheck(
        "data.filesystem", _filesystem, "a local file system: " + ", ".join(_LOCAL[:4]),
        "tmpfs loses its data, overlay copies files, and network file systems guarantee less for fdatasync and rename",
        "put log.dirs on a volume of its own",
    ),
    HostCheck(
        "data.mount", _mount_options, "noatime or relatime; no sync, data=journal, nobarrier",
        "with sync each append waits for the disk; with nobarrier a power failure can lose records of acks=all",
        "the options in /etc/fstab, then mount -o remount",
    ),
    HostCheck(
        "data.free", _free_space, ">= 2 GiB",
        "a full disk takes partitions offline for writing until there is room",
        "retention.bytes, or a larger volume",
    ),
)  # fmt: skip
