"""kproc: a Kafka-protocol broker for one host, built from processes.

Importing this package costs nothing: the embedded broker is looked up on first use, so that a role that only
needs `kproc.wire` never pays for it. ARCHITECTURE.md draws what lives where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kproc.embedded import Broker

__version__ = "0.1.0"
__all__ = ["Broker", "__version__"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import the embedded broker only when somebody asks for it (PEP 562)."""
    if name == "Broker":
        from kproc.embedded import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
