"""Shares of the process's limit of descriptors (RLIMIT_NOFILE): for the files of a cache, and for clients.

A role without a descriptor for a new link ends, and the end of a Processor closes all of its connections. A few
descriptors are therefore kept from clients, for the links of new and restarted Handlers and for segment files that are
being sent.
"""

from __future__ import annotations

import resource
from typing import Final

from kproc.broker.config.values import INT_MAX

_KEPT: Final = 64  # Descriptors that clients do not get.


def share_of_descriptors(divisor: int, *, most: int) -> int:
    """Return a share of the process's limit of descriptors (RLIMIT_NOFILE).

    It is the limit divided by `divisor`, at least 2 and at most `most`. If the process has no limit, it is `most`.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else max(2, min(most, limit // divisor))


def descriptor_end() -> int:
    """Return the lowest descriptor number that clients may not have.

    The kernel assigns the lowest free number, so a socket with this number or a higher one shows that nearly all
    descriptors are in use.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return INT_MAX if limit == resource.RLIM_INFINITY else limit - min(_KEPT, limit // 4)
