"""Brokers that exist for comparison only; `python -m bench.alternatives` starts them."""

from __future__ import annotations

from typing import Final

# Transports that kproc itself does not offer.
ALTERNATIVES: Final = ("connection-threads", "asyncio")
