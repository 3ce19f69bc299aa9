"""A broker for a test or a notebook: `kproc.Broker`, its error, and the command that runs it."""

from __future__ import annotations

from kproc.embedded.broker import Broker
from kproc.embedded.process import BrokerFailed, kproc_command

__all__ = ["Broker", "BrokerFailed", "kproc_command"]
