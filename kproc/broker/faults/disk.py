"""FaultyFs: a file system on which writes and syncs fail by the fault rules about the disk.

A Handler writes through it only while such a rule exists (`handler/fault_switch.py`). The controller and the cleaner
get no message about rules, so they write through it from their start on if kproc.faults.enable is set. Each call
compares the names of the rule files with those that it knows, so that a rule acts from the moment when it is stored.

Threads share a FaultyFs, because logs are synced in threads. It opens the rule's counter for each call, so that no
thread closes a counter that another one uses.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kproc.broker.faults.rule_files import RuleFiles
from kproc.broker.storage.format import (
    LOG_SUFFIX,
    is_state_directory_name,
    parse_partition_directory_name,
)
from kproc.broker.storage.fs import Buffer, Fs, StorageFailure, failure

if TYPE_CHECKING:
    from kproc.broker.calls.own_operations import FaultRule


def faulty(fs: Fs, log_dirs: str) -> Fs:
    """Wrap `fs`, so that the rules of the broker with these log.dirs fail its calls."""
    # A cast, because FaultyFs delegates by __getattr__, which a type checker cannot follow.
    return cast(Fs, FaultyFs(fs, log_dirs))


class FaultyFs:
    """An Fs that calls another one, unless a rule fails the call."""

    def __init__(self, fs: Fs, log_dirs: str) -> None:
        self._fs = fs
        self._log_dirs = log_dirs
        self._files = RuleFiles(log_dirs)
        # The ids of the known rules, and the rules. One attribute, because a thread replaces both while other threads
        # read them.
        self._known: tuple[list[int], dict[int, FaultRule]] = ([], {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def write(self, descriptor: int, buffers: Sequence[Buffer], *, position: int) -> None:
        """Write the buffers at `position` by the wrapped Fs. Raises StorageFailure.

        A rule fail-write raises its error, and nothing is written. If the bytes exceed the space that a rule fill-disk
        leaves, write the bytes that fit and raise DiskFull.
        """
        self._fail_call("fail-write", descriptor, "write")
        wanted = sum(map(len, buffers))
        for rule_id, rule in self._rules("fill-disk"):
            growth = position + wanted - self._fs.facts(descriptor).st_size
            excess = growth - max(0, self._free_bytes(rule))
            if excess > 0 and self._is_due(rule_id, rule):
                fitting = b"".join(buffers)[: max(0, wanted - excess)]
                # On a full disk write(2) stores the bytes that fit. Do the same, because the log must be able
                # to remove such a part.
                if fitting:
                    self._fs.write(descriptor, [fitting], position=position)
                raise _failed(errno.ENOSPC, "write")
        self._fs.write(descriptor, buffers, position=position)

    def sync(self, descriptor: int) -> None:
        """Sync by the wrapped Fs. A rule fail-sync raises its error instead. Raises StorageFailure."""
        self._fail_call("fail-sync", descriptor, "fdatasync")
        self._fs.sync(descriptor)

    def make_directory(self, path: Path) -> bool:
        """Create a directory by the wrapped Fs, and return the result of that Fs.

        Raises DiskFull if a rule fill-disk leaves no space.
        """
        for rule_id, rule in self._rules("fill-disk"):
            if self._free_bytes(rule) <= 0 and self._is_due(rule_id, rule):
                raise _failed(errno.ENOSPC, f"mkdir {path}")
        return self._fs.make_directory(path)

    def reserve(self, descriptor: int, position: int, length: int) -> bool:
        """Reserve space by the wrapped Fs.

        Return False without effect while a rule limits the disk, so that each write is measured.
        """
        try:
            is_limited = any(self._rules("fill-disk"))
        except StorageFailure:
            # The rules cannot be read. Reserve nothing, so that the next write reports this error.
            return False
        return not is_limited and self._fs.reserve(descriptor, position, length)

    def _fail_call(self, action: str, descriptor: int, call: str) -> None:
        """Raise the error of the first rule that is due for this write or sync of a segment's log file."""
        rules = list(self._rules(action))
        if not rules:
            return
        # Imported late, because it brings the decoder of requests into the controller and the cleaner.
        from kproc.broker.faults.matching import matches_name

        # proc(5): the link has the file's present name, even after a rename, so that no table of open files
        # is needed.
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        partition = parse_partition_directory_name(path.parent.name)
        if partition is None or path.suffix != LOG_SUFFIX:
            return
        for rule_id, rule in rules:
            is_matched = matches_name(rule.topic, partition[:1]) and rule.partition in (None, partition[1])
            if is_matched and self._is_due(rule_id, rule):
                raise _failed(getattr(errno, rule.error or "EIO"), call)

    def _rules(self, action: str) -> Iterator[tuple[int, FaultRule]]:
        """Yield the rules with this action. Read the files again if rules were added or removed.

        Raises StorageFailure if they cannot be read. The caller's call of the file system fails with that error.
        """
        try:
            ids = self._files.ids()
            if ids != self._known[0]:
                self._known = (ids, self._files.read())
        except OSError as error:
            raise failure(error, "read the fault rules") from error
        return ((rule_id, rule) for rule_id, rule in self._known[1].items() if rule.action == action)

    def _is_due(self, rule_id: int, rule: FaultRule) -> bool:
        """Count a call that a rule matches. Return True if the rule acts on it."""
        try:
            counter = self._files.counter(rule_id)
        except FileNotFoundError:
            return False  # Removed meanwhile.
        except OSError as error:
            raise failure(error, f"count a match of fault rule {rule_id}") from error
        # Imported late, because a broker without rules about the disk needs no random numbers.
        from kproc.broker.faults.schedule import Schedule

        try:
            return Schedule(rule).acts_on(counter.next())
        finally:
            counter.close()

    def _free_bytes(self, rule: FaultRule) -> int:
        return rule.used_bytes + rule.free_bytes - used_bytes(self._log_dirs)


def used_bytes(log_dirs: str) -> int:
    """Return the sum of the sizes of all files in log.dirs, without the fault rules and snapshots.

    Sums sizes and not blocks, because blocks depend on the file system. The sum is computed anew for each write, so
    that all roles agree and deleted files no longer count. A disk for tests has few files.
    """
    total = 0
    for directory, names, files in os.walk(log_dirs):
        if directory == log_dirs:
            names[:] = [name for name in names if is_state_directory_name(name)]
        for name in files:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue  # Deleted or renamed meanwhile.
    return total


def _failed(number: int, call: str) -> StorageFailure:
    return failure(OSError(number, os.strerror(number)), call)
