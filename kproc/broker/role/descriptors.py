"""The share of a process's descriptors that clients may use.

A role without a descriptor for a new link ends, and the end of a Processor closes all of its connections. A few
descriptors are therefore kept free for the links of new and restarted Handlers, and for segment files that are being
sent.
"""

from __future__ import annotations

import resource
from typing import Final

from kproc.broker.config.values import INT_MAX

_KEPT: Final = 64


def descriptor_end() -> int:
    """Return the lowest descriptor number that clients may not have.

    The kernel assigns the lowest free number, so a socket with this number or a higher one shows that nearly all
    descriptors are in use.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return INT_MAX if limit == resource.RLIM_INFINITY else limit - min(_KEPT, limit // 4)
