"""Number of files that a cache may keep open, as a share of the process's limit of descriptors (RLIMIT_NOFILE)."""

from __future__ import annotations

import resource


def share_of_descriptors(divisor: int, *, most: int) -> int:
    """Return the limit divided by `divisor`, at least 2 and at most `most`."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else max(2, min(most, limit // divisor))
