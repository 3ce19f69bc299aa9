"""DiskWatch: notices that the disk of the data directory is full, or will be within a day.

Roles count the writes that failed because the disk was full.

"Full" means that a write failed, not that a threshold was crossed: 300 kB are enough for most records and not for a
batch of 500 kB. The disk counts as full until there is more room than that write needed and no write has failed for a
second. The second condition covers quotas, which the free bytes of a file system do not show. The disk also stays full
as long as its file system has no free inode, because every write that needs a new file fails.

The disk "fills" if the free bytes will be gone within a day at the rate of the last hour. The rate is known ten minutes
after the start.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from logging import Logger
from typing import Any, Final

from kproc.common.clock import NS_PER_S

_LOOK_NS: Final = NS_PER_S // 2
_CALM_NS: Final = NS_PER_S
_REPEAT_NS: Final = 60 * NS_PER_S
# Bytes needed besides the write itself, for index entries and the files of a new segment.
_SPARE_BYTES: Final = 65_536
_RATE_SAMPLE_NS: Final = 60 * NS_PER_S
_RATE_SAMPLES: Final = 61  # An hour.
_RATE_SAMPLES_MIN: Final = 11
_WARN_S: Final = 86_400
_REPEAT_WARNING_NS: Final = 3600 * NS_PER_S

Shortages = Mapping[Hashable, tuple[int, int]]


class DiskWatch:
    """Watches the disk of the data directory. One per process that shows the status.

    shortages: returns (number of failed writes, bytes of the last one) by role.
    """

    def __init__(
        self,
        directory: str,
        shortages: Callable[[], Shortages],
        *,
        statvfs: Callable[[str], Any] = os.statvfs,
    ) -> None:
        self._directory = directory
        self._shortages = shortages
        self._statvfs = statvfs
        self._next_look_ns = 0
        self._known: Shortages | None = None
        self._wanted_bytes = 0
        self._last_ns: int | None = None  # Time of the last failed write, or None if the disk is not full.
        self._told_ns: int | None = None
        self._next_warning_ns = 0
        self._rate_samples: deque[tuple[int, int]] = deque(maxlen=_RATE_SAMPLES)  # Time, free bytes.
        self.free_bytes = self.total_bytes = 0
        self._has_inodes = True

    @property
    def is_full(self) -> bool:
        """True if a write failed because the disk was full, and there has not been enough space for it since."""
        return self._last_ns is not None

    @property
    def problem(self) -> str | None:
        """One line for `kproc status` and `top`, or None if the disk is not full and does not fill within a day."""
        if not self.is_full:
            return self._warning
        short = f"{self.free_bytes:,} bytes are free of {self.total_bytes:,}"
        if not self._has_inodes:
            short = "its file system has no free inodes, so no file can be created"
        return (
            f"the disk of {self._directory} is full: {short}, "
            "writes are refused with KAFKA_STORAGE_ERROR until there is room"
        )

    @property
    def _warning(self) -> str | None:
        left_s = self.time_to_full_s
        if left_s is None or left_s >= _WARN_S:
            return None
        return (
            f"the disk of {self._directory} is full in {_duration(left_s)} at the rate of the last hour: "
            f"{self.free_bytes:,} bytes are free of {self.total_bytes:,}; lower the retention of topics "
            "(kproc topic list shows their sizes), or enlarge the disk"
        )

    @property
    def time_to_full_s(self) -> float | None:
        """Seconds until no byte is free at the rate of the last hour: infinite if it does not fill, None if unknown."""
        if len(self._rate_samples) < _RATE_SAMPLES_MIN:
            return None
        (first_ns, first_free), (last_ns, last_free) = self._rate_samples[0], self._rate_samples[-1]
        # Retention or compaction has freed at least as much as was written, so the disk does not fill.
        if last_free >= first_free:
            return math.inf
        return self.free_bytes * (last_ns - first_ns) / (first_free - last_free) / NS_PER_S

    def sample(self, now_ns: int) -> None:
        """Measure the disk, and compare the counters of failed writes with the last sample. At most twice a second."""
        if now_ns < self._next_look_ns:
            return
        self._next_look_ns = now_ns + _LOOK_NS
        self.measure()
        if not self._rate_samples or now_ns - self._rate_samples[-1][0] >= _RATE_SAMPLE_NS:
            self._rate_samples.append((now_ns, self.free_bytes))
        found = self._shortages()
        # At the first sample, a write may have failed long before this process started. Count it only if the disk has
        # no space for it now, either.
        known, is_first = self._known or {}, self._known is None
        self._known = found
        wanted = [size for role, (count, size) in found.items() if count > known.get(role, (0, 0))[0]]
        if wanted and not (is_first and self._has_room(max(wanted))):
            self._last_ns, self._wanted_bytes = now_ns, max(wanted)
        elif (
            self._last_ns is not None
            # Wait for 1 s after the last failure, or the status would alternate between full and free while clients
            # retry.
            and now_ns - self._last_ns >= _CALM_NS
            and self._has_room(self._wanted_bytes)
        ):
            self._last_ns = None

    def _has_room(self, wanted_bytes: int) -> bool:
        return self._has_inodes and self.free_bytes > wanted_bytes + _SPARE_BYTES

    def measure(self) -> None:
        """Measure free and total bytes. Free bytes are those that users other than root can use."""
        try:
            facts = self._statvfs(self._directory)
        except OSError:
            # The directory does not exist any more. Accesses to the logs fail, too, and report it.
            return
        # statvfs(3): f_bavail leaves out the blocks that are reserved for root, which a broker cannot use.
        self.free_bytes = facts.f_bavail * facts.f_frsize
        self.total_bytes = facts.f_blocks * facts.f_frsize
        # f_files is 0 on file systems without a fixed number of inodes, such as btrfs.
        self._has_inodes = facts.f_favail > 0 or not facts.f_files

    def log_changes(self, logger: Logger, now_ns: int) -> None:
        """Log the beginning and the end of a full disk, and once a minute that it is still full.

        Log once an hour that it will be full within a day.
        """
        if self.is_full:
            if self._told_ns is None or now_ns - self._told_ns >= _REPEAT_NS:
                self._told_ns = now_ns
                logger.error("%s", self.problem)
        elif self._told_ns is not None:
            self._told_ns = None
            logger.info(
                "there is room again on the disk of %s: %s bytes are free",
                self._directory,
                f"{self.free_bytes:,}",
            )
        elif now_ns >= self._next_warning_ns and (warning := self._warning) is not None:
            self._next_warning_ns = now_ns + _REPEAT_WARNING_NS
            logger.warning("%s", warning)

    def describe(self) -> dict[str, Any]:
        """Return the disk's section of `kproc status --json`. Measures again."""
        self.measure()
        left_s = self.time_to_full_s
        return {
            "free_bytes": self.free_bytes,
            "used_bytes": self.total_bytes - self.free_bytes,
            "is_full": self.is_full,
            "full_in_s": None if left_s is None or math.isinf(left_s) else round(left_s),
        }


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
