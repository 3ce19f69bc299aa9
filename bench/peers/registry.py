"""The compared brokers: kproc's transports over the same code, and Apache Kafka.

The threaded variants run with the same flush level as the judged broker, so that only the transport differs. A peer
that cannot run on this machine stays in the table with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bench.peers import free_threaded
from bench.peers.base import Peer
from bench.peers.kafka import KafkaPeer
from bench.peers.kproc import FreeThreadedPeer, KprocPeer
from tests.support import kafka_jars


@dataclass(frozen=True)
class PeerKind:
    """One broker of the comparison. `make` builds it with a cell's settings and `work_us`, which Kafka ignores."""

    name: str
    make: Callable[[Mapping[str, str], int], Peer]
    missing: Callable[[], str | None]
    is_everywhere: bool = True
    """Asked everything; False: only what names it (Cell.peers)."""

    @property
    def is_kproc(self) -> bool:
        return self.name != "kafka"


def _kproc(transport: str, flush: str, *, is_everywhere: bool = True) -> PeerKind:
    def make(settings: Mapping[str, str], work_us: int) -> Peer:
        return KprocPeer(transport=transport, flush=flush, settings=dict(settings), work_us=work_us)

    return PeerKind(f"{transport}-{flush}", make, lambda: None, is_everywhere)


def _free_threaded() -> PeerKind:
    def make(settings: Mapping[str, str], work_us: int) -> Peer:
        return FreeThreadedPeer(flush="group", settings=dict(settings), work_us=work_us)

    return PeerKind("free-threaded-group", make, lambda: free_threaded.find().reason or None)


PEERS: Final = {
    kind.name: kind
    for kind in (
        PeerKind("kafka", lambda _settings, _work_us: KafkaPeer(), kafka_jars.missing_reason),
        _kproc("process", "group"),
        _kproc("thread", "group"),
        _free_threaded(),
        _kproc("connection-threads", "group"),
        _kproc("asyncio", "group"),
        _kproc("inline", "group"),
        _kproc("process", "none", is_everywhere=False),
    )
}
"""In the order of the tables."""
