"""Descriptors that clients do not get.

A role that cannot take the descriptor of a new link ends, and a Processor takes all of its connections with it. So a
few are kept for the links of Handlers that die or come, and for segments that are being sent.
"""

from __future__ import annotations

import resource
from typing import Final

from kproc.config.values import INT_MAX

_KEPT: Final = 64


def descriptor_end() -> int:
    """The lowest descriptor that no client gets.

    Numbers are given out from below, so whoever gets a higher one has nearly all in use.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return INT_MAX if limit == resource.RLIM_INFINITY else limit - min(_KEPT, limit // 4)
