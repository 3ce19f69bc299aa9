"""Sender of the events. Arrow builds the JSON; the Spark sink's encoder and BatchProducer send the batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from examples.clicks.events import END_MS, Events, Longs
from kproc.client.security.settings import PLAINTEXT, ClientSecurity
from kproc.spark.brokers import Cluster, Connecting
from kproc.spark.encode import RecordEncoder, RowColumns
from kproc.spark.producer import BatchProducer
from kproc.spark.sink_options import ProducerSettings

PARTITIONS: Final = 4
VIEWS, CLICKS, ORDERS = "views", "clicks", "orders"
# The column that is the key of each kind of event. It also chooses the partition.
KEYS: Final = {VIEWS: "visitor", CLICKS: "click", ORDERS: "click"}
_QUOTE: Final = {
    name: f'"{name}":' for name in ("ts", "visitor", "page", "ms", "click", "amount", "order_id")
}


class EventSender:
    """Sender of all events in the order of their time, and then of the records that close the windows."""

    def __init__(
        self,
        bootstrap: str,
        topics: dict[str, str],
        events: Events,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._events = events
        self._stop = threading.Event()
        settings = ProducerSettings(client_id="kproc-clicks", security=security)
        self._settings = settings
        self._encoder = RecordEncoder(batch_bytes=settings.batch_bytes, bytes_max=settings.request_bytes)
        self.sent = dict.fromkeys(KEYS, 0)

    def stop(self) -> None:
        """Stop sending after the current chunk. Another thread calls this."""
        self._stop.set()

    def run(self, on_sent: Callable[[dict[str, int]], None]) -> None:
        """Send the events. Call `on_sent` with the number of records of each kind so far after each chunk."""
        cluster = Cluster(self._bootstrap, Connecting(security=self._settings.security))
        producer = BatchProducer(cluster, self._settings)
        try:
            for topic in self._topics.values():
                # This looks up the leaders, which `send` needs.
                producer.partition_count(topic)
            for chunk in self._events.chunks():
                for kind, columns in ((VIEWS, chunk.views), (CLICKS, chunk.clicks), (ORDERS, chunk.orders)):
                    self._send(producer, kind, columns)
                producer.flush()
                on_sent(dict(self.sent))
                if self._stop.is_set():
                    return
            for kind in KEYS:
                self._send_end(producer, kind)
            producer.flush()
        finally:
            producer.close()
            cluster.close()

    def _send(self, producer: BatchProducer, kind: str, columns: dict[str, Longs]) -> None:
        key = columns[KEYS[kind]]
        if not len(key):
            return
        rows = RowColumns(
            to_json(columns), pa.array(key).cast(pa.string()).cast(pa.binary()), None, columns["ts"]
        )
        for draft in self._encoder.encode(rows, (key % PARTITIONS).astype(np.int32)):
            producer.send(self._topics[kind], draft)
        self.sent[kind] += len(key)

    def _send_end(self, producer: BatchProducer, kind: str) -> None:
        """Send one record long after the last event, so that the watermark passes every event.

        The record's own window stays open.
        """
        names = {
            VIEWS: ("visitor", "page", "ms"),
            CLICKS: ("click", "page"),
            ORDERS: ("click", "amount", "order_id"),
        }
        columns: dict[str, Any] = {name: np.full(1, -1, np.int64) for name in names[kind]}
        columns["ts"] = np.full(1, END_MS, np.int64)
        rows = RowColumns(to_json(columns), None, None, columns["ts"])
        for draft in self._encoder.encode(rows, np.zeros(1, np.int32)):
            producer.send(self._topics[kind], draft)


def to_json(columns: dict[str, Longs]) -> pa.Array:
    """Return a JSON object of integers for each row."""
    parts: list[Any] = []
    for at, (name, column) in enumerate(columns.items()):
        parts += [pa.scalar(("," if at else "{") + _QUOTE[name]), pa.array(column).cast(pa.string())]
    joined = pc.binary_join_element_wise(*parts, pa.scalar("}"), pa.scalar(""))
    return joined.cast(pa.binary())
