"""RequestContext and Services: the arguments with which an API's handler function works.

`RequestContext` is one request as `api/` sees it. request/request.py implements it over a link. A handler function
sends parts of a request to other Handlers with `services.peers`, and changes of metadata with `ask_controller`. Both
reply by a callback in the Handler's own thread, so nothing here needs a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from logging import getLogger
from typing import TYPE_CHECKING, Any

from kproc.broker.cluster.client_quotas import REQUEST_PERCENTAGE
from kproc.broker.cluster.delegation_tokens import LOG_ONLY
from kproc.broker.metrics.requests import ERRORS, Counts
from kproc.broker.request.change_descriptions import CHANGES
from kproc.broker.request.change_log import ChangeLog
from kproc.broker.role.roles import CLEANER, CONTROLLER, handler_id
from kproc.common.errors import ErrorCode, KafkaError
from kproc.common.log_rate import LogRate
from kproc.wire import codec
from kproc.wire.header import ApiKey, RequestHeader

if TYPE_CHECKING:
    from kproc.broker.api.init_producer_id import ProducerIdAllocator
    from kproc.broker.api.topic_creations import TopicCreations
    from kproc.broker.calls.calls import B, Call, Lost, R
    from kproc.broker.calls.controller_calls import OwnAnswer
    from kproc.broker.calls.own_operations import CountShareRecords
    from kproc.broker.cluster.image import ClusterImage
    from kproc.broker.config import Config
    from kproc.broker.coordinator.topic_coordinators import TopicCoordinators
    from kproc.broker.handler.fault_switch import FaultSwitch
    from kproc.broker.handler.logins import Logins
    from kproc.broker.handler.partition_transfer import PartitionTransfer
    from kproc.broker.handler.partitions import Partitions
    from kproc.broker.handler.request_monitor import RequestMonitor
    from kproc.broker.peers.owners import HandledCall
    from kproc.broker.request.client_rates import ClientRates, Meter
    from kproc.broker.request.divided_requests import DividedRequests
    from kproc.broker.request.fetch_session import SessionCache
    from kproc.broker.role.listeners import ListenerEndpoint
    from kproc.broker.role.purgatory import Purgatory
    from kproc.broker.security.acl import Operation, ResourceType
    from kproc.broker.security.authorizer import StandardAuthorizer
    from kproc.broker.security.principal import Identity, Principal
    from kproc.broker.share.partition.share_partitions import SharePartitions
    from kproc.broker.share.session.sessions import ShareSessions
    from kproc.common.clock import Clock
    from kproc.common.containment import Containment
    from kproc.wire.file_range import FileRange

PartitionKey = tuple[str, int]
OnReady = Callable[[bool], None]


class PartitionMoving(KafkaError):
    """This Handler owns the partition, but its log is still being transferred from the former owner, or not open yet.

    A request waits for the partition with `PartitionTransfer.when_ready`. Callers that cannot wait return a retriable
    error. The offsets are those that the former owner last published, or -1 if they are unknown.
    """

    def __init__(self, key: PartitionKey, start_offset: int, high_watermark: int) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key[0]}-{key[1]} is changing its Handler")
        self.key = key
        self.start_offset = start_offset
        self.high_watermark = high_watermark


class Peers:
    """Sends the calls of a role to Handlers, the controller and the cleaner, which reply later.

    ask: the role's function with the arguments (peer, call, body, on_reply, payload).
    """

    def __init__(self, ask: Callable[..., None]) -> None:
        self._ask = ask

    def ask(
        self,
        handler: int,
        call: Call[B, R],
        body: B,
        on_reply: Callable[[R | Lost], None],
        payload: bytes | memoryview = b"",
    ) -> None:
        """Call another Handler. `on_reply` gets Lost if that Handler dies before it replies."""
        self._ask(handler_id(handler), call, body, on_reply, payload)

    def ask_controller(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None]) -> None:
        self._ask(CONTROLLER, call, body, on_reply)

    def ask_cleaner(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None]) -> None:
        """Call the cleaner, for work on many files that would stall a Handler."""
        self._ask(CLEANER, call, body, on_reply)


class OwnerServices:
    """The services of a Handler as the owner of partitions. The controller, which owns none, has no such services."""

    __slots__ = (
        "coordinators",
        "forwarded",
        "partitions",
        "producer_ids",
        "purgatory",
        "session_cache",
        "share_sessions",
        "shares",
        "topic_creations",
        "transfers",
    )

    shares: SharePartitions  # Set by the Handler.

    def __init__(
        self,
        *,
        partitions: Partitions,
        purgatory: Purgatory,
        transfers: PartitionTransfer,
        producer_ids: ProducerIdAllocator,
        session_cache: SessionCache,
        share_sessions: ShareSessions,
        topic_creations: TopicCreations,
    ) -> None:
        self.partitions = partitions
        self.purgatory = purgatory
        self.transfers = transfers
        self.producer_ids = producer_ids
        self.session_cache = session_cache
        self.share_sessions = share_sessions
        self.topic_creations = topic_creations
        self.coordinators: Mapping[str, TopicCoordinators[Any]] = {}  # By internal topic.
        self.forwarded: dict[HandledCall[Any], None] = {}  # Other Handlers' requests that wait in this one.


class ClientServices:
    """The services that handle the requests of clients of one role, whatever their API."""

    __slots__ = ("count_share_records", "divided", "faults", "logins", "monitor", "refusals", "served")

    def __init__(self, *, served: frozenset[int] | None = None) -> None:
        # The API keys that this role serves, or None for all. The control listener serves few.
        self.served = served
        self.refusals = LogRate(getLogger(__name__), "and %d more connections were closed for their requests")
        self.logins: Logins | None = None  # None: this role handles no logins.
        # None: nobody can watch the requests of this role's clients.
        self.monitor: RequestMonitor | None = None
        # Counts the records that a share group has in flight. None: this role calls no owners of partitions.
        self.count_share_records: Callable[[CountShareRecords, Callable[[OwnAnswer], None]], None] | None = (
            None
        )
        self.faults: FaultSwitch | None = None  # None: the requests of this role are never faulted.
        self.divided: DividedRequests  # Set by the reader of the requests.


class Services:
    """The services that a Handler, or the control plane of the controller, offers to the APIs."""

    __slots__ = (
        "authorizer",
        "change_log",
        "client_rates",
        "clients",
        "clock",
        "config",
        "containment",
        "counts",
        "endpoints",
        "handler_index",
        "image",
        "owner",
        "peers",
    )

    owner: OwnerServices  # Not set in the control plane.

    def __init__(
        self,
        *,
        config: Config,
        clock: Clock,
        image: ClusterImage,
        endpoints: Sequence[ListenerEndpoint],
        handler_index: int,
        peers: Peers,
        clients: ClientServices,
        client_rates: ClientRates,
        counts: Counts,
        containment: Containment,
    ) -> None:
        self.config = config
        self.clock = clock
        self.image = image
        self.endpoints = endpoints
        self.handler_index = handler_index
        self.peers = peers
        self.clients = clients
        self.client_rates = client_rates
        # None without an authorizer: every client may do everything. The role sets it later, because a
        # StandardAuthorizer reads the image of these services.
        self.authorizer: StandardAuthorizer | None = None
        self.counts = counts
        self.containment = containment
        self.change_log = ChangeLog()

    def uncounted(self) -> Services:
        """Return a copy whose request counters are discarded, for requests of the broker itself."""
        services = copy(self)
        # The readiness probe that the broker sends itself at its start must not be counted as a client's request.
        services.counts = Counts(memoryview(bytes(8)).cast("Q"), 0, 0)  # These counts are never stored.
        return services


def error_codes(fields: Mapping[str, Any]) -> Iterator[int]:
    """Yield every error code but NONE in a response, at any depth."""
    code = fields.get("error_code")
    if code:
        yield int(code)
    for value in fields.values():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for each in value:
                yield from error_codes(each)


def row_error_codes(fields: Mapping[str, Any]) -> Iterator[int]:
    """Yield the error codes in the rows of a response. The caller counts the response's own code when it is sent."""
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
    decoded: Any  # The request's fields, for an error response that names them; None until they are decoded.
    throttle_ms: int  # The response's throttle_time_ms; 0 unless the client is above its quota.
    meter: Meter | None  # Set until the request is answered; None for a client without a request_percentage.

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
        """Call the controller. `on_reply` runs after every Handler has applied the change to its image."""
        self.services.peers.ask_controller(call, body, on_reply)

    @property
    def client_host(self) -> str:
        """The client's address as DescribeGroups shows it in Kafka: `/127.0.0.1`."""
        raise NotImplementedError

    @property
    def principal(self) -> Principal:
        """The client's principal. ANONYMOUS if it has not authenticated."""
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
        """Return True if the client may do the operation on the resource.

        Without an authorizer every client may do everything, and so may the probe that the broker sends itself at its
        start.

        is_question: the client has not attempted the operation, so the audit log does not show a denial.
        count: how often the request names the resource, for the audit log.
        """
        raise NotImplementedError

    def is_allowed_for_any(self, operation: Operation, resource: ResourceType) -> bool:
        """Return True if the client may do the operation on some resource of this type, which need not exist."""
        raise NotImplementedError

    def count_error(self, code: int) -> None:
        """Count one error code of the response in the metrics. Called for each occurrence of the code."""
        self.services.counts.add(ERRORS, self.api_key, code)

    def count_row_errors(self, fields: Mapping[str, Any]) -> None:
        """Count the error codes in the rows of a response that is joined from parts."""
        for code in row_error_codes(fields):
            self.count_error(code)

    def reply(self, fields: Mapping[str, Any]) -> None:
        """Send a response with these fields, encoded for the request's version, and count its error codes.

        If the request has changed something as an administrator does, log that first (change_log.py).
        """
        for code in error_codes(fields):
            self.count_error(code)
        if self.api_key in CHANGES:
            self.services.change_log.log_response(self, fields)
        if self.meter is not None:
            self.settle()
        answer = dict(fields)
        answer.pop(LOG_ONLY, None)
        # The responses of DescribeQuorum, WriteTxnMarkers and some old versions have no field for the throttle time.
        # Their connections are throttled nevertheless.
        if self.throttle_ms and codec.has_response_field(self.api_key, self.api_version, "throttle_time"):
            answer["throttle_time"] = self.throttle_ms
        pieces = codec.encode_response_in_pieces(self.api_key, self.api_version, self.correlation_id, answer)
        first = pieces[0]
        if len(pieces) == 1 and isinstance(first, bytes):
            self.send(first)
        else:
            self.send_parts(pieces)

    def settle(self) -> None:
        """Charge the client for the time of this request. Called right before the response is encoded.

        This may increase `throttle_ms`, which is part of the response.
        """
        meter = self.meter
        if meter is None:
            return
        self.meter = None
        self.start_throttle(meter.settle(), REQUEST_PERCENTAGE)

    def start_throttle(self, duration_ms: int, quota: str) -> None:
        """Throttle the client for `duration_ms`, unless this request throttles it for longer already.

        `quota` is the name of the quota that the client exceeds.
        """
        if duration_ms > self.throttle_ms:
            self.throttle_ms = duration_ms
            self.throttle(duration_ms, quota)

    def send(self, frame: bytes) -> None:
        """Send a whole frame as the response."""
        raise NotImplementedError

    def send_parts(self, parts: list[bytes | FileRange]) -> None:
        """Send a response made of bytes and file ranges."""
        raise NotImplementedError

    def fail(self) -> None:
        """Answer UNKNOWN_SERVER_ERROR after an unexpected exception, or close the connection if that is not possible.

        Do nothing if the request was answered already.
        """
        raise NotImplementedError

    def divide(self, name_rows: Callable[[], dict[str, Any]]) -> None:
        """Handle the request that `name_rows` returns instead of this one, which stands for many rows (all topics).

        `name_rows` is called only when the request's turn comes, so that waiting requests take no memory for rows.
        """
        raise NotImplementedError

    def no_op(self) -> None:
        """Finish without a response (Produce with acks=0)."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish by closing the connection. A Produce with acks=0 can report an error in no other way."""
        raise NotImplementedError

    def throttle(self, duration_ms: int, quota: str) -> None:
        """Stop reading this connection for `duration_ms`. Call it before the response, which has the duration, is sent.

        If it is called several times, the longest duration counts.
        """
        raise NotImplementedError

    def set_client(self, software_name: str, software_version: str) -> None:
        """Store the client's software name and version from ApiVersions (KIP-511), for `kproc clients`."""
        raise NotImplementedError

    def when_gone(self, on_gone: Callable[[], None]) -> None:
        """Call back if the client disconnects before this request is answered."""
        raise NotImplementedError
