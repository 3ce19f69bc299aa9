"""What a handler function gets: the request's header, a way to answer, and the services of its Handler.

`RequestContext` is the request as seen from `api/`; request/request.py makes it answer over a link. Parts of
one request that belong to other Handlers are asked for with `services.peers`, metadata changes with
`ask_controller`; both reply by a callback on the Handler's own thread, so nothing here needs a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from kproc.broker.calls.calls import B, Call, Lost, R
from kproc.broker.cluster.image import ClusterImage, PartitionImage
from kproc.broker.config import Config
from kproc.broker.coordinator.marker import Marker
from kproc.broker.coordinator.rules import OnCode
from kproc.broker.metrics.requests import ERRORS, Counts
from kproc.broker.role.purgatory import Purgatory
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.principal import Identity, Principal
from kproc.broker.storage.log import Log
from kproc.broker.storage.log_traffic import LogTraffic
from kproc.common.clock import Clock
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode, KafkaError
from kproc.common.log_rate import LogRate
from kproc.wire import codec
from kproc.wire.file_range import FileRange
from kproc.wire.header import ApiKey, RequestHeader

if TYPE_CHECKING:
    from kproc.broker.request.fetch_session import SessionCache

PartitionKey = tuple[str, int]
OnReady = Callable[[bool], None]
C_co = TypeVar("C_co", covariant=True)


class PartitionMoving(KafkaError):
    """We own the partition, but its log is still being transferred from its former owner, or will be opened later.

    A request waits for it with `services.transfers.when_ready`. Callers that cannot wait return a retriable error. The
    offsets are those that the former owner last published, or -1.
    """

    def __init__(self, key: PartitionKey, start_offset: int, high_watermark: int) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key[0]}-{key[1]} is changing its Handler")
        self.key = key
        self.start_offset = start_offset
        self.high_watermark = high_watermark


class Endpoint(Protocol):
    """One listener: the name in `listeners`, and what its clients are told to connect to."""

    @property
    def name(self) -> str: ...
    @property
    def advertised_host(self) -> str: ...
    @property
    def advertised_port(self) -> int: ...
    @property
    def protocol(self) -> str: ...


class OwnedPartition(Protocol):
    """A partition of this Handler: its log, and who waits for its bytes to be on disk."""

    key: PartitionKey
    log: Log
    # The end of the log at its opening, if the high watermark before a crash is unknown; else 0.
    recovered_end: int

    @property
    def is_recovering(self) -> bool:
        """True as long as the high watermark that clients saw before a crash is unknown."""

    def after_append(self) -> None:
        """Publish the new end and wake whoever waits for data."""

    def after_start_moved(self) -> None:
        """Publish the new start, and wake parked fetches below it."""

    def when_synced(self, offset: int, on_done: Callable[[int], None]) -> None:
        """Call `on_done(error code)` once everything below `offset` is on disk."""


class Partitions(Protocol):
    """The partitions that this Handler owns; logs are opened at first touch."""

    def get(self, topic: str, partition: PartitionImage) -> OwnedPartition:
        """The open partition. Raises KafkaError: KAFKA_STORAGE_ERROR when its log is offline or damaged, and
        PartitionMoving."""

    def traffic_of(self, topic: str) -> LogTraffic:
        """What this Handler has counted of a topic."""


class ClientRates(Protocol):
    """Byte rates of clients against their quotas. Nothing is asked of it while `is_on` is False."""

    is_on: bool

    def fetch_wait_ms(self, user: str, client_id: bytes | None) -> int:
        """How long the client is throttled before it gets any records."""

    def on_fetch(self, user: str, client_id: bytes | None, count: int) -> None:
        """The client gets that many bytes of records."""

    def note_throttle(self, kind: str, duration_ms: int) -> None:
        """A client of ours is throttled by that quota, which somebody else has counted."""

    def fetch_bytes_max(self, user: str, client_id: bytes | None) -> int | None:
        """What one answer may hold; None: no limit."""


class Meter(Protocol):
    """The Handler's time for a request of a client that has a request_percentage."""

    def stop(self) -> None:
        """Stop measuring: the Handler does something else."""

    def resume(self) -> None:
        """Continue measuring after `stop`."""

    def settle(self) -> int:
        """Charge the client; how long it is throttled, in ms."""


class _NoRates:
    """Nobody has a quota."""

    is_on = False

    def fetch_wait_ms(self, user: str, client_id: bytes | None) -> int:
        raise NotImplementedError

    def on_fetch(self, user: str, client_id: bytes | None, count: int) -> None:
        raise NotImplementedError

    def note_throttle(self, kind: str, duration_ms: int) -> None:
        del kind, duration_ms  # The control listener has no such figures.

    def fetch_bytes_max(self, user: str, client_id: bytes | None) -> int | None:
        raise NotImplementedError


class PartitionTransfer(Protocol):
    """Changes of the owners, as they reach this Handler."""

    def when_ready(self, key: PartitionKey, on_ready: OnReady) -> None:
        """Call back when a moving partition can be asked again; with False when that takes too long."""

    def later(self, key: PartitionKey, on_ready: OnReady) -> None:
        """Call back in a later duty cycle: for work on a partition that must not keep the others waiting."""

    def when_image(self, version: int, on_image: Callable[[], None]) -> None:
        """Call back when the metadata here has that version, which another Handler has spoken of."""


class Peers(Protocol):
    """The other Handlers, the controller and the cleaner, by calls that are answered later."""

    def ask(
        self,
        handler: int,
        call: Call[B, R],
        body: B,
        on_reply: Callable[[R | Lost], None],
        payload: bytes | memoryview = b"",
    ) -> None:
        """Ask another Handler."""

    def ask_controller(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None]) -> None: ...

    def ask_cleaner(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None]) -> None:
        """Ask for what touches many files, which would stall a Handler."""


class ProducerIds(Protocol):
    """Blocks of producer ids, see api/init_producer_id.py."""

    def allocate(self, on_id: Callable[[int], None], on_failure: Callable[[KafkaError], None]) -> None: ...


class Forwarded(Protocol):
    """What another Handler asked of coordinators of ours (peers/coordinator_call.py)."""

    home: int  # The Handler that asked.

    def finish(self) -> None:
        """Answer it with what there is."""


class Coordinators(Protocol[C_co]):
    """The coordinators of one internal topic at this Handler, and where the others are."""

    def partition_of(self, name: str) -> PartitionImage | None:
        """The topic's partition that keeps what has that name (a group, say); None before the topic is made."""

    def coordinator(self, index: int) -> C_co:
        """The coordinator of a partition of ours. KafkaError with what its clients must be told otherwise."""

    def when_settled(self, index: int, on_settled: Callable[[], None]) -> None:
        """For who was told COORDINATOR_LOAD_IN_PROGRESS: call back, once and soon, when it is worth asking again."""

    def give_up(self, index: int) -> None:
        """An operation of that coordinator of ours raised and left it half changed: it is loaded anew."""

    def append_marker(self, index: int, marker: Marker, on_code: OnCode) -> None:
        """End a transaction at a partition of ours: `on_code(NONE)` when the marker is durable, else its error.

        KafkaError (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS) if nothing was appended, or it may not have been.
        """

    def loaded(self) -> Sequence[C_co]:
        """All coordinators of ours that can be asked."""

    def when_loaded(self, on_loaded: Callable[[], None]) -> None:
        """Load every partition of ours that has been written to, then call back."""


class Authorizer(Protocol):
    """What clients may do, by the access control lists of the metadata in force: security/authorizer.py."""

    def is_allowed(
        self,
        client: Identity,
        operation: Operation,
        resource: ResourceType,
        name: str,
        *,
        api_key: int,
        is_question: bool = False,
        count: int = 1,
    ) -> bool:
        """Whether the client may do that; the answer goes into the audit log with the request's API key.

        With `is_question` the client attempts nothing (a list leaves out what it may not see): as in Kafka that is
        logged at TRACE alone, whatever the answer.
        """

    def is_allowed_for_any(
        self, client: Identity, operation: Operation, resource: ResourceType, *, api_key: int
    ) -> bool:
        """Whether there is some resource of that type, which need not exist, with which the client may do that."""

    def tell_of_floods(self, now_ns: int) -> None:
        """Log how many decisions the audit log left out."""


class Logins(Protocol):
    """Logins of clients whose sessions have an end, and who prolong them: handler/logins.py."""

    def begin_again(self, context: Any, mechanism: str) -> bool:
        """Answer a SaslHandshake of a client that has logged in. False: it has nothing to prolong."""

    def go_on(self, context: Any, token: bytes) -> bool:
        """Answer a SaslAuthenticate, now or later. False: no login has begun."""


class DividedRequests(Protocol):
    """The role's requests with many rows, which are handled in steps: request/divided_requests.py."""

    def add(self, request: Any, api: Any, decoded: Any, size_bytes: int) -> None:
        """Handle a request in later duty cycles."""

    def divide(self, request: Any, name_rows: Callable[[], dict[str, Any]], *, is_held: bool) -> None:
        """Handle, in later duty cycles, the request that names all rows which `request` stands for."""

    def add_listing(self, listing: Any) -> None:
        """Collect an answer (request/listing.py) now if it is short, else in later duty cycles."""

    def add_pages(self, pages: Any) -> None:
        """Send a list to another Handler, the first page now and the others in later duty cycles."""


_NO_RATES: Final = _NoRates()


class Services:
    """Everything a Handler offers to the APIs. One per Handler, made by handler/handler.py."""

    __slots__ = (
        "authorizer",
        "client_rates",
        "clock",
        "config",
        "containment",
        "coordinators",
        "counts",
        "divided",
        "endpoints",
        "forwarded",
        "handler_index",
        "image",
        "logins",
        "partitions",
        "peers",
        "producer_ids",
        "purgatory",
        "refusals",
        "served",
        "session_cache",
        "transfers",
        "waits_for_sync",
    )

    def __init__(
        self,
        *,
        config: Config,
        clock: Clock,
        image: ClusterImage,
        endpoints: Sequence[Endpoint],
        handler_index: int,
        partitions: Partitions,
        peers: Peers,
        purgatory: Purgatory,
        counts: Counts,
        containment: Containment,
    ) -> None:
        self.containment = containment
        self.counts = counts
        self.config = config
        self.clock = clock
        self.image = image
        self.endpoints = endpoints
        self.handler_index = handler_index
        self.partitions = partitions
        self.peers = peers
        self.purgatory = purgatory
        self.refusals = LogRate(getLogger(__name__), "and %d more connections were closed for their requests")
        self.waits_for_sync = config.kproc_flush == "group"
        # The API keys that are served here; None: all. The control listener serves few.
        self.served: frozenset[int] | None = None
        self.authorizer: Authorizer | None = None  # None: everybody may do everything.
        self.logins: Logins | None = None  # None: where nobody logs in.
        self.divided: DividedRequests
        self.producer_ids: ProducerIds
        self.session_cache: SessionCache
        self.transfers: PartitionTransfer
        self.client_rates: ClientRates = _NO_RATES
        self.coordinators: Mapping[str, Coordinators[Any]]  # By internal topic.
        self.forwarded: dict[Forwarded, None] = {}  # Of other Handlers, whose clients wait here.

    def count_fetched(self, topic: str | bytes | None, count: int) -> None:
        """Records of a topic, by its name or id, left in the answer of a Fetch."""
        if isinstance(topic, bytes):
            found = self.image.topic_by_id(topic)
            topic = found.name if found is not None else None
        if topic is not None:
            traffic = self.partitions.traffic_of(topic)
            traffic.bytes_out += count
            traffic.fetches += 1

    def uncounted(self) -> Services:
        """The same for a request of the broker's own, which is in no figure of its clients."""
        services = copy(self)
        services.counts = Counts(memoryview(bytes(8)).cast("Q"), 0, 0)  # Never stored.
        return services


def error_codes(fields: Mapping[str, Any]) -> Iterator[int]:
    """Every error code of an answer but NONE, wherever it stands."""
    for name, value in fields.items():
        if name == "error_code":
            if value:
                yield int(value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for each in value:
                yield from error_codes(each)


def row_error_codes(fields: Mapping[str, Any]) -> Iterator[int]:
    """The error codes in the rows of an answer. The one of the whole answer counts once, when it is sent."""
    for value in fields.values():
        if isinstance(value, list):
            for row in value:
                if isinstance(row, dict):
                    yield from error_codes(row)


class RequestContext:
    """One request in work. Answered exactly once: by `reply`, `send`, `send_parts`, `no_op` or `close`."""

    __slots__ = (
        "api_key",
        "api_version",
        "client_id_bytes",
        "connection_id",
        "correlation_id",
        "decoded",
        "listener_index",
        "meter",
        "services",
        "throttle_ms",
    )

    services: Services
    api_key: int
    api_version: int
    correlation_id: int
    client_id_bytes: bytes | None
    connection_id: int
    listener_index: int
    identity: Identity  # The client's address and principal when the request came in.
    decoded: Any  # The request's fields, for an answer that names them; None until they are read.
    throttle_ms: int  # What the answer says of it; 0 unless the client is above its quota.
    meter: Meter | None  # Until the request is answered; None for a client without a request_percentage.

    @property
    def header(self) -> RequestHeader:
        client_id = (self.client_id_bytes or b"").decode("utf-8", "replace")
        return RequestHeader(ApiKey(self.api_key), self.api_version, self.correlation_id, client_id)

    @property
    def listener(self) -> str:
        return self.services.endpoints[self.listener_index].name

    @property
    def advertised_host(self) -> str:
        return self.services.endpoints[self.listener_index].advertised_host

    @property
    def advertised_port(self) -> int:
        return self.services.endpoints[self.listener_index].advertised_port

    def ask_controller(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None]) -> None:
        """Ask the controller; `on_reply` runs after every Handler has taken in the change."""
        self.services.peers.ask_controller(call, body, on_reply)

    @property
    def client_host(self) -> str:
        """The client's address as Kafka shows it to those who describe groups: `/127.0.0.1`."""
        raise NotImplementedError

    @property
    def principal(self) -> Principal:
        """Who the client is; ANONYMOUS if nobody asked."""
        return self.identity.principal

    def is_allowed(
        self,
        operation: Operation,
        resource: ResourceType,
        name: str,
        *,
        is_question: bool = False,
        count: int = 1,
    ) -> bool:
        """Whether the client may do that to that resource. True without an authorizer, and for the broker's own.

        `is_question`: it does not attempt it, so a denial is not for the audit log. `count`: how often it names the
        resource, for that log.
        """
        raise NotImplementedError

    def is_allowed_for_any(self, operation: Operation, resource: ResourceType) -> bool:
        """Whether the client may do that to some resource of that type."""
        raise NotImplementedError

    def count_error(self, code: int) -> None:
        """Enter an error code of the answer into the metrics, one for each place where it stands in the answer."""
        self.services.counts.add(ERRORS, self.api_key, code)

    def count_row_errors(self, fields: Mapping[str, Any]) -> None:
        """Count the error codes in the rows of an answer that is sent in parts."""
        for code in row_error_codes(fields):
            self.count_error(code)

    def reply(self, fields: Mapping[str, Any]) -> None:
        """Answer with the response's fields in any version's shape."""
        for code in error_codes(fields):
            self.count_error(code)
        if self.meter is not None:
            self.settle()
        answer = dict(fields)
        # The responses of DescribeQuorum, WriteTxnMarkers and some old versions have no field for it. Their connections
        # are throttled all the same.
        if self.throttle_ms and codec.has_response_field(self.api_key, self.api_version, "throttle_time"):
            answer["throttle_time"] = self.throttle_ms
        self.send(codec.encode_response(self.api_key, self.api_version, self.correlation_id, answer))

    def settle(self) -> None:
        """Charge the time for this request, right before its answer is encoded, whose `throttle_ms` may grow by it."""
        meter = self.meter
        if meter is None:
            return
        self.meter = None
        self.begin_throttle(meter.settle())

    def begin_throttle(self, duration_ms: int) -> None:
        """Throttle the client if that is longer than what it is throttled for already."""
        if duration_ms > self.throttle_ms:
            self.throttle_ms = duration_ms
            self.throttle(duration_ms)

    def send(self, frame: bytes) -> None:
        """Answer with a whole frame."""
        raise NotImplementedError

    def send_parts(self, parts: list[bytes | FileRange]) -> None:
        """Answer with a frame made of bytes and file ranges."""
        raise NotImplementedError

    def fail(self) -> None:
        """A surprise came up: answer UNKNOWN_SERVER_ERROR, else close the connection. Nothing if it was answered."""
        raise NotImplementedError

    def divide(self, name_rows: Callable[[], dict[str, Any]]) -> None:
        """Handle the request that `name_rows` returns instead of this one, which stands for many rows (all topics).

        The rows are named when their turn comes: the requests that wait until then take no memory for them.
        """
        raise NotImplementedError

    def no_op(self) -> None:
        """Finish without an answer (Produce with acks=0)."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish by closing the connection: the only way to report an error of an acks=0 Produce."""
        raise NotImplementedError

    def throttle(self, duration_ms: int) -> None:
        """Let nothing more be read of this connection for that long: before the answer, which says so. The longest one
        counts."""
        raise NotImplementedError

    def note_client(self, software_name: str, software_version: str) -> None:
        """What ApiVersions told of the client, for those who look at its connection."""
        raise NotImplementedError

    def when_gone(self, on_gone: Callable[[], None]) -> None:
        """Call back if the client disconnects before this request is answered."""
        raise NotImplementedError
