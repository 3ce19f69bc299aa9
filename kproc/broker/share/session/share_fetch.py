"""ShareFetch (key 78), versions 1-2 (KIP-932).

A member acquires records of the partitions of its share session, and acknowledges records that it got before. As in
Fetch, the records are sent as ranges of files. If no record can be acquired, the request waits for up to max.wait.ms.

Epoch 0 opens a session and -1 ends it (sessions.py). A response has the partitions with records, with errors, with
acknowledgements, and those that are new in the session.

Differs from Kafka: `group.share.max.share.sessions` limits the sessions of each Handler. Their partitions have limits,
too. One group cannot use up either of them (sessions.py). Another connection cannot continue a session. A client above
its consumer_byte_rate acquires nothing until its rate is below the quota again; Kafka's broker acquires records and
drops them.

Versions: v2 acquire modes (KIP-1206), renewals of locks (KIP-1222).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.cluster.client_quotas import CONSUMER_BYTE_RATE
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics, on_group
from kproc.broker.role.purgatory import DelayedCall
from kproc.broker.security.acl import Operation
from kproc.broker.share.partition.messages import OPENS_LATER, AcknowledgedPart, AcquiredPart, ShareKey
from kproc.broker.share.session.acknowledge import Acknowledgements, has_acknowledgements, has_renew_ack
from kproc.broker.share.session.acquire import AcquireLimits, Acquisition
from kproc.broker.share.session.owner_call import release_session
from kproc.broker.share.session.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession, keys_of
from kproc.broker.share.session.share_requests import (
    ROWS_MAX,
    add_leader,
    by_topic,
    check_request,
    topic_names,
)
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.file_range import FileRecords
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

Fields = dict[str, Any]
# KIP-1206: the modes in which records are acquired.
_BATCH_OPTIMIZED: Final = 0
_RECORD_LIMIT: Final = 1
_MUST_BE_ZERO: Final = (
    ("max_bytes", "maxBytes"),
    ("min_bytes", "minBytes"),
    ("max_records", "maxRecords"),
    ("max_wait", "maxWaitMs"),
)


@api(
    ApiKey.SHARE_FETCH,
    versions=(1, 2),
    needs=(on_group(Operation.READ),),
    rows_max=ROWS_MAX,
)
def handle_share_fetch(context: RequestContext, request: Fields) -> None:
    check_request(context, request)
    _check_renewal(request)
    keys = keys_of(request["topics"])
    session = _find_session(context, request, keys)
    if session is None:
        _respond_later(context, request)
        return
    ShareFetch(context, request, session, keys).start()


def _check_renewal(request: Fields) -> None:
    """Reject a request that renews locks and fetches records, too (KIP-1222), and an unknown acquire mode."""
    if has_renew_ack(request):
        wrong = [name for field, name in _MUST_BE_ZERO if request[field]]
        if wrong:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{', '.join(wrong)} must be set to 0 if isRenewAck is true."
            )
    if request.get("share_acquire_mode", _BATCH_OPTIMIZED) not in (_BATCH_OPTIMIZED, _RECORD_LIMIT):
        raise KafkaError(ErrorCode.INVALID_REQUEST)


def _find_session(context: RequestContext, request: Fields, keys: Sequence[ShareKey]) -> ShareSession | None:
    """Return the session of a request, which may be a new one. None if the limits allow no new session.

    keys: the partitions that the request names.
    Raises KafkaError with Kafka's error for an epoch that is not the next one, and for an unknown session.
    """
    services = context.services
    sessions = services.owner.share_sessions
    group_id, member_id, epoch = request["group_id"], request["member_id"], request["share_session_epoch"]
    # KIP-932: the last request releases what the member holds. Its epoch is not compared, because a client
    # that closes may have missed a response.
    if epoch == FINAL_EPOCH:
        return sessions.find(group_id, member_id)
    if epoch != INITIAL_EPOCH:
        session = sessions.find(group_id, member_id)
        forgotten = keys_of_forgotten(request["forgotten_topics_data"])
        for closed in sessions.proceed(session, epoch, keys, forgotten):
            release_session(services, closed)
        return session
    if has_acknowledgements(request["topics"]):
        # A new session cannot acknowledge, because it holds no records yet.
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    evicted = sessions.make_room(group_id, member_id, keys)
    if evicted is None:
        return None
    now_ns = services.clock.now_ns()
    session, replaced = sessions.open(group_id, member_id, context.connection_id, keys, now_ns)
    session.lock_ms = services.owner.shares.settings.of_group(group_id).lock_ms
    for closed in evicted if replaced is None else (*evicted, replaced):
        release_session(services, closed)
    return session


def keys_of_forgotten(topics: Sequence[Fields]) -> list[ShareKey]:
    """Return the partitions that a request removes from its session."""
    return [(topic["topic_id"] or bytes(16), index) for topic in topics for index in topic["partitions"]]


def _respond_later(context: RequestContext, request: Fields) -> None:
    """Respond that the request would exceed the limits of sessions, after max.wait.ms.

    Without the wait the client would repeat its request at once, for ever.
    """
    services = context.services
    respond = partial(context.reply, {"error_code": int(ErrorCode.SHARE_SESSION_LIMIT_REACHED)})
    if request["max_wait"] <= 0:
        respond()
        return
    operation = DelayedCall(services.clock.now_ns() + request["max_wait"] * NS_PER_MS, respond)
    services.owner.purgatory.watch(operation, ())
    context.when_gone(partial(services.owner.purgatory.cancel, operation))


class ShareFetch:
    """One ShareFetch, from the checked request to its response.

    Acknowledgements and the acquisition of records run at the same time, as in Kafka. The response waits for both.
    """

    __slots__ = (
        "_acknowledged",
        "_acquired",
        "_context",
        "_denied",
        "_failed",
        "_is_final",
        "_is_first",
        "_left",
        "_request",
        "_session",
    )

    def __init__(
        self, context: RequestContext, request: Fields, session: ShareSession, keys: Sequence[ShareKey]
    ) -> None:
        self._context = context
        self._request = request
        self._session = session
        self._is_final = request["share_session_epoch"] == FINAL_EPOCH
        self._is_first = request["share_session_epoch"] == INITIAL_EPOCH
        self._left = 0
        self._acknowledged: dict[ShareKey, AcknowledgedPart] = {}
        self._acquired: dict[ShareKey, AcquiredPart] = {}
        self._failed: dict[ShareKey, AcquiredPart] = {}
        # As in Kafka, authorize the request only once, even if it waits.
        named: Iterable[ShareKey] = keys if self._is_final else dict.fromkeys((*session.targets, *keys))
        names = topic_names(context.services, named)
        self._denied = denied_topics(context, Operation.READ, names)

    def start(self) -> None:
        """Send acknowledgements first, so that owners handle them before they acquire, unless there are very many."""
        self._left = 1
        if has_acknowledgements(self._request["topics"]):
            self._left += 1
            services, on_done = self._context.services, self._on_acknowledged
            Acknowledgements(services, self._session, self._request, self._denied, on_done).start()
        if not (self._is_final or has_renew_ack(self._request)):
            self._left += 1
            self._acquire()
        # Discard the request's rows, because the session has the partitions. While the request waits, they would take
        # more memory than the rest of it.
        self._request["topics"] = []
        self._finish_one()

    def _on_acknowledged(self, results: dict[ShareKey, AcknowledgedPart]) -> None:
        self._acknowledged = results
        self._finish_one()

    def _acquire(self) -> None:
        """Acquire records from the partitions that exist and that the client may read."""
        services, request = self._context.services, self._request
        wanted = self._find_wanted()
        bytes_max = min(request["max_bytes"], services.config.fetch_max_bytes, self._quota_bytes())
        if not wanted or request["max_records"] <= 0 or bytes_max <= 0:
            self._finish_one()
            return
        # As in Kafka, rotate the partitions by the epoch of the request, so that the limits of records and bytes starve
        # no partition.
        at = request["share_session_epoch"] % len(wanted)
        limits = AcquireLimits(
            records_max=request["max_records"],
            bytes_max=bytes_max,
            bytes_min=min(request["min_bytes"], bytes_max),
            batch_size=max(0, request["batch_size"]),
            is_exact=request.get("share_acquire_mode", _BATCH_OPTIMIZED) == _RECORD_LIMIT,
            deadline_ns=services.clock.now_ns() + max(0, request["max_wait"]) * NS_PER_MS,
        )
        acquisition = Acquisition(
            services, self._session, wanted[at:] + wanted[:at], limits, self._on_acquired
        )
        acquisition.start()
        if not acquisition.is_completed:
            self._context.when_gone(acquisition.cancel)

    def _find_wanted(self) -> list[ShareKey]:
        """Return the partitions to acquire from, and store the errors of the others."""
        by_id = self._context.services.image.topics_by_id
        wanted = []
        for key, target in self._session.targets.items():
            topic = by_id.get(key[0])
            if topic is not None:
                target.topic_name = topic.name
            # The topic was never known, so its id is unknown (KIP-516).
            if target.topic_name is None:
                self._failed[key] = AcquiredPart(int(ErrorCode.UNKNOWN_TOPIC_ID))
            elif target.topic_name in self._denied:
                self._failed[key] = AcquiredPart(int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            # The topic existed when the session began, and was deleted since. The member gets this error
            # until it removes the partition from its session.
            elif topic is None or not 0 <= key[1] < len(topic.partitions):
                self._failed[key] = AcquiredPart(int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                wanted.append(key)
        return wanted

    def _quota_bytes(self) -> int:
        """Return how many bytes the client's quota allows, or fetch.max.bytes if it has no quota.

        Throttle a client above its quota, and return 0.
        """
        context = self._context
        rates = context.services.client_rates
        if not rates.is_on:
            return context.services.config.fetch_max_bytes
        user, client_id = context.principal.name, context.client_id_bytes
        wait_ms = rates.fetch_wait_ms(user, client_id)
        # Do not acquire for a client above its quota. Acquired records that it does not get in time would
        # count as deliveries.
        if wait_ms:
            context.start_throttle(wait_ms, CONSUMER_BYTE_RATE)
            return 0
        limit = rates.fetch_bytes_max(user, client_id)
        return context.services.config.fetch_max_bytes if limit is None else limit

    def _on_acquired(self, acquisition: Acquisition) -> None:
        self._acquired = acquisition.results
        self._finish_one()

    def _finish_one(self) -> None:
        self._left -= 1
        if not self._left:
            self._respond()

    # -- the response ------------------------------------------------------------------------------------------

    def _respond(self) -> None:
        context, session = self._context, self._session
        services = context.services
        if self._is_final:
            services.owner.share_sessions.close(session)
            release_session(services, session)
        rows: dict[ShareKey, Fields] = {}
        for key, part in (*self._acquired.items(), *self._failed.items()):
            self._add_row(rows, key, part)
        for key, result in self._acknowledged.items():
            row = rows.setdefault(key, {"partition_index": key[1], "error_code": 0})
            row["acknowledge_error_code"] = result.error
            row["acknowledge_error_message"] = result.error_message
        self._count_records()
        context.reply({"acquisition_lock_timeout": session.lock_ms, **by_topic(context, rows)})

    def _add_row(self, rows: dict[ShareKey, Fields], key: ShareKey, part: AcquiredPart) -> None:
        """Add a partition's row if the client must learn its result. As in Kafka, an error's message is not sent."""
        # A log that is not open yet is no error for the client. One of its next requests finds the log open.
        code = 0 if part.error == OPENS_LATER else part.error
        acquired = part.acquired
        needs_row = self._session.needs_row(key, has_records=bool(acquired), has_error=bool(code))
        if not (needs_row or self._is_first):
            return
        row: Fields = {"partition_index": key[1], "error_code": code}
        rows[key] = row
        if acquired:
            row["records"] = FileRecords(part.ranges)
            row["acquired_records"] = [
                {"first_offset": each.first, "last_offset": each.last, "delivery_count": each.delivery_count}
                for each in acquired
            ]
        if code:
            add_leader(self._context.services, key, row)

    def _count_records(self) -> None:
        """Count the bytes of records in the metrics of their topics, and for the client's quota."""
        services, context = self._context.services, self._context
        total = 0
        for (topic_id, _), part in self._acquired.items():
            if part.bytes and (topic := services.image.topics_by_id.get(topic_id)) is not None:
                services.owner.partitions.traffic_of(topic.name).bytes_out += part.bytes
                total += part.bytes
        if total and services.client_rates.is_on:
            services.client_rates.on_fetch(context.principal.name, context.client_id_bytes, total)


def error_response(_request: Fields, code: int, _message: str | None) -> Fields:
    """Return an error response of ShareFetch. As in Kafka, it has no error message."""
    return {"error_code": code}
