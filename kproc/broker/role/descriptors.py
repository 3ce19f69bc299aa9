"""How many of the process's descriptors clients may use.

A role that has no descriptor left for a new link ends, and with a Processor all of its connections do. So a few are
kept free for the links of new and restarted Handlers, and for segment files that are being sent.
"""

from __future__ import annotations

import resource
from typing import Final

from kproc.broker.config.values import INT_MAX

_KEPT: Final = 64


def descriptor_end() -> int:
    """The lowest descriptor number that is kept free of clients.

    The kernel hands out the lowest free number, so a socket with a higher one shows that nearly all are in use.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return INT_MAX if limit == resource.RLIM_INFINITY else limit - min(_KEPT, limit // 4)
