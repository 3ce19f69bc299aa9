"""Processes and sessions: wait for their end, force it and describe it, and identify a process by its start.

A child that was started by setsid() has its pid as the number of its session and of its process group. Its own children
belong to both, even if their parent has ended and init has adopted them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
from typing import Final

from kproc.common.clock import NS_PER_MS, SystemClock

# Errors if this process or the host has no free descriptor or memory. They do not mean that the process whose /proc
# file was opened has ended.
_SHORT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def wait_ended(descriptor: int, timeout_ms: int) -> bool:
    """Wait until the process of a pidfd has ended, which makes it readable. Return False after the timeout."""
    poll = select.poll()
    # poll(2) and not select(2), because a descriptor can be above 1,023.
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def wait_session_ends(session: int, *, timeout_ms: int) -> list[int]:
    """Wait until every process of the session has ended. Return the pids that are alive after the timeout."""
    clock = SystemClock()
    deadline_ns = clock.now_ns() + timeout_ms * NS_PER_MS
    while members := session_members(session):
        left_ms = (deadline_ns - clock.now_ns()) // NS_PER_MS
        if left_ms <= 0:
            return members
        try:
            pidfd = os.pidfd_open(members[0])
        except ProcessLookupError:
            # The process has ended since session_members() listed it.
            continue
        try:
            wait_ended(pidfd, left_ms)
        finally:
            os.close(pidfd)
    return []


def session_members(session: int) -> list[int]:
    """Return the pids of a session's live processes. Zombies have ended and do not count."""
    members = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        fields = stat_fields(int(entry))
        if not fields:
            continue  # The process has ended since listdir().
        state, _parent, _group, its_session = fields[:4]
        if int(its_session) == session and state not in (b"Z", b"X"):
            members.append(int(entry))
    return members


def kill_process_group(group: int) -> None:
    # All processes of the group can end before the signal is sent.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def peek_exit(pid: int) -> int | None:
    """Return the exit code of an ended child, or minus the signal that killed it, without reaping the child.

    Return None if the kernel has reaped it, because this process ignores SIGCHLD, or another thread has.

    The zombie reserves the pid, which is also the number of the child's session, until the session's processes have
    ended.
    """
    try:
        # WNOWAIT leaves the child a zombie, which is what keeps its pid reserved (waitid(2)).
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return None
    assert ended is not None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def exit_text(code: int | None) -> str:
    if code is None:
        return "an unknown exit code, because this process ignores SIGCHLD or reaps its children itself"
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks after the boot, or None if it has ended.

    A pid together with its start time identifies one process, even after the kernel has reused the pid.
    """
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def parent_pid(pid: int) -> int | None:
    """Return the pid of a process's parent, or None if the process has ended."""
    fields = stat_fields(pid)
    return int(fields[1]) if fields else None


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the command's name; an empty list if the process has ended.

    Raises OSError if this process has no free descriptor or memory.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # proc(5): the name of the command stands in parentheses and may itself contain blanks and parentheses, so
            # search for the last one.
            return file.read().rpartition(b")")[2].split()
    except OSError as error:
        if error.errno in _SHORT:
            raise
        return []
