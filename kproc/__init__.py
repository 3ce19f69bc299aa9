"""Start a Kafka-protocol broker from Python, for tests, notebooks and pipelines of one host.

    import kproc

    with kproc.Broker({"num.partitions": 3}) as broker:
        broker.create_topic("orders")
        producer = Producer({"bootstrap.servers": broker.bootstrap})  # any Kafka client

- `kproc.Broker`: a broker in processes of its own, stopped at the end of the block. See help(kproc.Broker), and for its
  faults, recorded requests and groups the guide TESTING.md in the directory of this file.
- `kproc.BrokerFailed`: the broker did not start or stop; the message has the last lines of its log.
- `kproc.ControlServer`: faults, time, snapshots, roles, topics and requests over HTTP, for tests in other languages.
- Coroutines: `async with kproc.Broker()`, and `broker.aio` with every method that waits.
- `kproc.ClientError`: the broker rejected a rule, a snapshot or another request; the message has its reason.
- `kproc.ConfigError`: a setting has a wrong value; the message names it.
- In pytest, the fixtures `kproc_broker` and `kproc_topic` need no import.
- On the command line: `kproc --help`.
"""

# Import the embedded broker only when it is used, so that a program that needs only kproc.wire starts faster.
# ARCHITECTURE.md shows the packages.

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if not hasattr(os, "memfd_create"):
    from kproc.common.missing_calls import add_missing

    add_missing()

if TYPE_CHECKING:
    from kproc.broker.config.values import ConfigError
    from kproc.client.errors import ClientError
    from kproc.embedded import Broker, BrokerFailed
    from kproc.embedded.control import ControlServer

__version__ = "0.1.0"
__all__ = ["Broker", "BrokerFailed", "ClientError", "ConfigError", "ControlServer", "__version__"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used (PEP 562)."""
    if name in ("Broker", "BrokerFailed"):
        from kproc import embedded

        return getattr(embedded, name)
    if name == "ControlServer":
        from kproc.embedded.control import ControlServer

        return ControlServer
    if name == "ClientError":
        from kproc.client.errors import ClientError

        return ClientError
    if name == "ConfigError":
        from kproc.broker.config.values import ConfigError

        return ConfigError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
