"""HandlerTelemetry: a Handler's part of telemetry: the bytes of its partitions, and a sample of its requests.

The sample is taken from the requests that are timed anyway (processor/timed_requests.py), at most so many a second
of each API, so that other requests cost nothing more. Requests for telemetry's own topic are left out: a reader that
follows the topic would get lines about its own reading for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kproc.broker.calls.calls import OnResult
from kproc.broker.calls.cleaner_calls import Done
from kproc.broker.calls.controller_calls import CHANGE
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.internal_topics import TELEMETRY_TOPIC
from kproc.broker.handler.partition_transfer import PartitionTransfer
from kproc.broker.handler.partitions import Partitions
from kproc.broker.handler.request_log import loggable
from kproc.broker.observe.network_figures import api_name
from kproc.broker.observe.telemetry_feed import TELEMETRY, TOPIC_WANTED, BatchSent, Feed, OnSent, Wanted
from kproc.broker.request.context import PartitionMoving, Services
from kproc.broker.request.request import HandlerRequest
from kproc.broker.request.traffic import Rows, Traffic
from kproc.broker.storage.validate import COORDINATOR
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import NS_PER_MS, NS_PER_S
from kproc.common.errors import KafkaError
from kproc.wire.header import ApiKey

PARTITIONS_MAX: Final = 500  # Most partitions with a line in an interval, the busiest ones.
_BODY_BYTES_MAX: Final = 16 << 10  # The line of a longer request has no fields.
_OPEN_MAX: Final = 256
_FETCH: Final = int(ApiKey.FETCH)


class RequestSamples:
    """The sampled requests that are not answered yet."""

    def __init__(self, services: Services, feed: Feed, per_second: int) -> None:
        self._services = services
        self._feed = feed
        self._gap_ns = NS_PER_S // per_second
        self._last_ns: dict[int, int] = {}  # By API key.
        self._open: dict[HandlerRequest, tuple[Any, int]] = {}

    def begin(self, request: HandlerRequest, body: memoryview) -> None:
        """Consider a timed request for the sample; store its fields, because its bytes are gone when it is
        answered.
        """
        last_ns = self._last_ns.get(request.api_key, -self._gap_ns)
        if len(self._open) >= _OPEN_MAX or request.taken_ns - last_ns < self._gap_ns:
            return
        shown = None
        if len(body) <= _BODY_BYTES_MAX:
            shown = loggable(request.api_key, request.api_version, body)
            if self._is_about_telemetry(request.api_key, shown):
                return
        self._last_ns[request.api_key] = request.taken_ns
        self._open[request] = (shown, len(body))

    def drop(self, request: HandlerRequest) -> None:
        """Forget a sample: its frame turned out to be no request."""
        self._open.pop(request, None)

    def end(self, request: HandlerRequest, answered_ns: int) -> None:
        """Complete the sample of a request that is being answered."""
        found = self._open.pop(request, None)
        if found is None:
            return
        shown, body_bytes = found
        listeners = self._services.endpoints
        at = request.listener_index
        done_ns = request.done_ns or answered_ns
        self._feed.add(
            "request",
            {
                "api": api_name(request.api_key),
                "api_key": request.api_key,
                "api_version": request.api_version,
                "client_id": (request.client_id_bytes or b"").decode("utf-8", "replace"),
                "local_ms": (done_ns - request.taken_ns) / NS_PER_MS,
                "remote_ms": (answered_ns - done_ns) / NS_PER_MS,
                "total_ms": (answered_ns - request.taken_ns) / NS_PER_MS,
                "correlation_id": request.correlation_id,
                "connection": str(request.connection_id),
                "address": request.client_host,
                "listener": listeners[at].name if at < len(listeners) else "",
                "throttle_ms": request.throttle_ms,
                "body_bytes": body_bytes,
                "request": shown,
            },
        )

    def _is_about_telemetry(self, api_key: int, shown: Any) -> bool:
        topic = self._services.image.topic(TELEMETRY_TOPIC)
        names = {TELEMETRY_TOPIC}
        if topic is not None:
            names |= {topic.topic_id.hex(), _dashed(topic.topic_id)}
        if _mentions(shown, names):
            return True
        if api_key != _FETCH or not isinstance(shown, dict) or topic is None:
            return False
        # An incremental Fetch names no topic; its session has them.
        cache = self._services.session_cache
        return cache.reads(int(shown.get("session_id", 0)), topic.name, topic.topic_id)


class HandlerTelemetry:
    """One per Handler."""

    def __init__(
        self, agent: AgentId, services: Services, partitions: Partitions, transfers: PartitionTransfer
    ) -> None:
        self._services = services
        self._partitions = partitions
        self._transfers = transfers
        self._index = agent.index
        self._feed = Feed(
            agent,
            clock=services.clock,
            config=services.config,
            image=lambda: services.image,
            ask=self._ask,
            create=lambda on_reply: services.peers.ask_controller(CHANGE, TOPIC_WANTED, on_reply),
        )
        self._wanted = Wanted(services.image, services.config)
        self._since_ns = services.clock.now_ns()

    def switch(self) -> None:
        """Switch telemetry by the settings in force."""
        services = self._services
        self._wanted = wanted = Wanted(services.image, services.config)
        services.samples = (
            RequestSamples(services, self._feed, wanted.per_second) if wanted.requests else None
        )
        if not wanted.metrics:
            services.traffic = None
        elif services.traffic is None:
            services.traffic = Traffic()
            self._since_ns = services.clock.now_ns()
        if not wanted.is_on:
            self._feed.forget()

    @property
    def is_on(self) -> bool:
        return self._wanted.is_on

    def tick(self, now_ns: int) -> None:
        """Called ten times a second while telemetry is on."""
        if not self._wanted.is_on:
            return
        if self._services.traffic is not None and now_ns - self._since_ns >= self._wanted.interval_ns:
            self._tell_partitions(self._services.traffic, now_ns)
        self._feed.tick()

    def serve(self, body: BatchSent, payload: memoryview | bytearray, on_reply: OnResult[Done]) -> None:
        """Append another role's batch to a partition of ours."""
        self._append(body.partition, bytes(payload), on_reply)

    def _ask(self, owner: int, body: BatchSent, on_reply: OnSent, batch: bytes) -> None:
        if owner == self._index:
            self._append(body.partition, batch, on_reply)
        else:
            self._services.peers.ask(owner, TELEMETRY, body, on_reply, batch)

    def _append(self, index: int, batch: bytes, on_reply: OnResult[Done]) -> None:
        image = lambda: self._services.image  # noqa: E731 - it may be another one when the log has come
        _append(self._partitions, self._transfers, image, index, batch, on_reply)

    def _tell_partitions(self, traffic: Traffic, now_ns: int) -> None:
        interval_ms = (now_ns - self._since_ns) // NS_PER_MS
        self._since_ns = now_ns
        rows = self._by_name(*traffic.take())
        busiest = sorted(rows.items(), key=lambda row: row[1][0] + row[1][2], reverse=True)
        for (name, index), (bytes_in, records_in, bytes_out, fetches) in busiest[:PARTITIONS_MAX]:
            topic = self._services.image.topic(name)
            partition = self._services.image.partition(name, index)
            self._feed.add(
                "partition",
                {
                    "interval_ms": interval_ms,
                    "topic": name,
                    "partition": index,
                    "owner": partition.owner if partition is not None else None,
                    "topic_partitions": len(topic.partitions) if topic is not None else None,
                    "bytes_in": bytes_in,
                    "records_in": records_in,
                    "bytes_out": bytes_out,
                    "fetches": fetches,
                },
            )

    def _by_name(self, came: Rows, went: Rows) -> dict[tuple[str, int], list[int]]:
        """[bytes in, records in, bytes out, fetches] of each partition that is not the telemetry's own."""
        rows: dict[tuple[str, int], list[int]] = {}
        for at, moved in ((0, came), (2, went)):
            for (name, index), pair in moved.items():
                if isinstance(name, bytes):
                    topic = self._services.image.topic_by_id(name)
                    name = topic.name if topic is not None else None
                if name is None or name == TELEMETRY_TOPIC:
                    continue
                row = rows.setdefault((name, index), [0, 0, 0, 0])
                row[at] += pair[0]
                row[at + 1] += pair[1]
        return rows


def _dashed(topic_id: bytes) -> str:
    text = topic_id.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _mentions(value: Any, names: set[str]) -> bool:
    if isinstance(value, str):
        return value in names
    if isinstance(value, dict):
        return any(_mentions(each, names) for each in value.values())
    return isinstance(value, list) and any(_mentions(each, names) for each in value)


def _append(
    partitions: Partitions,
    transfers: PartitionTransfer,
    image: Callable[[], ClusterImage],
    index: int,
    batch: bytes,
    on_reply: OnResult[Done],
) -> None:
    """Append a batch as the owner; answered when it is in the log. Telemetry does not wait for the disk."""

    def go_on(is_ready: bool) -> None:
        if is_ready:
            _append(partitions, transfers, image, index, batch, on_reply)
        else:
            on_reply(None)

    partition = image().partition(TELEMETRY_TOPIC, index)
    if partition is None or partition.owner != partitions.handler_index:
        # The partition has another owner, or was deleted: the sender looks it up again.
        on_reply(None)
        return
    try:
        owned = partitions.get(TELEMETRY_TOPIC, partition)
        (result,) = owned.log.append([memoryview(bytearray(batch))], COORDINATOR)
        owned.after_append()
    except PartitionMoving as moving:
        transfers.when_ready(moving.key, go_on)
        return
    except (KafkaError, OSError) as error:
        on_reply(Done(str(error)))
        return
    on_reply(Done(result.message or str(result.error_code) if result.error_code else None))
