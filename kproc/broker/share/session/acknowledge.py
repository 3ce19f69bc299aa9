"""Acknowledgements of a client: their checks, and the calls to the owners of the partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.broker.calls.calls import Lost
from kproc.broker.share.partition.messages import (
    SHARE_ACKNOWLEDGE,
    AcknowledgeBatch,
    AcknowledgedPart,
    AcknowledgePart,
    AcknowledgeParts,
    AcknowledgeType,
    PartsAcknowledged,
)
from kproc.broker.share.session.owner_call import call_owner
from kproc.broker.share.session.sessions import ShareKey, ShareSession
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.cluster.image import PartitionImage
    from kproc.broker.request.context import Services

Fields = dict[str, Any]
OnAcknowledged = Callable[[dict[ShareKey, AcknowledgedPart]], None]
_RENEW_SINCE: Final = 2


class RenewRules(NamedTuple):
    """The rules for acknowledgements that renew locks (KIP-1222).

    is_known: the request's version has the type RENEW. is_allowed: the request has IsRenewAck.
    """

    is_known: bool
    is_allowed: bool

    @classmethod
    def of(cls, version: int, request: Mapping[str, Any]) -> RenewRules:
        """Return the rules for a ShareFetch or ShareAcknowledge."""
        return cls(version >= _RENEW_SINCE, request.get("is_renew_ack", False))


def has_acknowledgements(topics: Sequence[Fields]) -> bool:
    """Return True if a ShareFetch acknowledges records."""
    return any(partition["acknowledgement_batches"] for topic in topics for partition in topic["partitions"])


def find_partition(services: Services, key: ShareKey) -> PartitionImage | None:
    """Return a partition by its topic's id. None if it does not exist."""
    topic = services.image.topics_by_id.get(key[0])
    if topic is None or not 0 <= key[1] < len(topic.partitions):
        return None
    return topic.partitions[key[1]]


class Acknowledgements:
    """The acknowledgements of one request, from their checks to the answers of all owners.

    denied: names of topics that the client may not read.
    `on_done` gets the result of each partition that the request names, once. It may be called before `start` returns.
    """

    __slots__ = ("_left", "_on_done", "_parts", "_services", "_session", "results")

    def __init__(
        self,
        services: Services,
        session: ShareSession,
        topics: Sequence[Fields],
        denied: Collection[str],
        rules: RenewRules,
        on_done: OnAcknowledged,
    ) -> None:
        self._services = services
        self._session = session
        self._on_done = on_done
        self._left = 0
        self.results: dict[ShareKey, AcknowledgedPart] = {}
        self._parts: dict[ShareKey, AcknowledgePart] = {}
        for topic in topics:
            for row in topic["partitions"]:
                self._add(topic["topic_id"] or bytes(16), row, denied, rules)

    def _add(self, topic_id: bytes, row: Fields, denied: Collection[str], rules: RenewRules) -> None:
        """Validate a partition's acknowledgements in Kafka's order. Store the error, or add them to those to send."""
        key = topic_id, row["partition_index"]
        batches = [
            AcknowledgeBatch(each["first_offset"], each["last_offset"], each["acknowledge_types"])
            for each in row["acknowledgement_batches"]
        ]
        topic = self._services.image.topics_by_id.get(topic_id)
        code = ErrorCode.NONE
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif not _are_valid(batches, rules):
            code = ErrorCode.INVALID_REQUEST
        elif topic.name in denied:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif find_partition(self._services, key) is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.results[key] = AcknowledgedPart(int(code))
        if not code and batches:
            self._parts[key] = AcknowledgePart(topic_id, key[1], batches)

    def start(self) -> None:
        """Call the owners. If the request acknowledges no records, finish at once."""
        self._left = 1
        if not self._parts:
            # As in Kafka, a request without valid acknowledgements gets rows only for partitions with errors.
            self.results = {key: result for key, result in self.results.items() if result.error}
        self._send(list(self._parts))
        self._finish_one()

    def _send(self, keys: Sequence[ShareKey]) -> None:
        """Send each owner the acknowledgements of its partitions in one call."""
        services = self._services
        by_owner: dict[int, list[ShareKey]] = {}
        for key in keys:
            partition = find_partition(services, key)
            if partition is None:
                self.results[key] = AcknowledgedPart(int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                by_owner.setdefault(partition.owner, []).append(key)
        version = services.image.version
        self._left += len(by_owner)
        for owner, sent in by_owner.items():
            body = AcknowledgeParts(version, self._session.holder, [self._parts[key] for key in sent])
            call_owner(services, owner, SHARE_ACKNOWLEDGE, body, partial(self._on_reply, sent, version))

    def _on_reply(self, keys: Sequence[ShareKey], version: int, reply: PartsAcknowledged | Lost) -> None:
        """Store an owner's results. Send the partitions that have moved to another owner to that owner."""
        moved: list[ShareKey] = []
        if isinstance(reply, Lost):
            # The owner died and may or may not have stored the acknowledgements.
            for key in keys:
                self.results[key] = AcknowledgedPart(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            self._session.lock_ms = reply.lock_ms
            for key, result in zip(keys, reply.parts, strict=True):
                self.results[key] = result
                if result.error == ErrorCode.NOT_LEADER_OR_FOLLOWER and reply.known > version:
                    moved.append(key)
        # The partition was transferred, and this Handler's metadata did not show it yet. The new owner has the
        # state, so send the acknowledgement to it, without an error for the client.
        if moved:
            assert isinstance(reply, PartsAcknowledged)
            self._services.owner.transfers.when_image(reply.known, partial(self._resend, moved))
        else:
            self._finish_one()

    def _resend(self, keys: Sequence[ShareKey]) -> None:
        self._send(keys)
        self._finish_one()

    def _finish_one(self) -> None:
        self._left -= 1
        if not self._left:
            self._on_done(self.results)


def _are_valid(batches: Sequence[AcknowledgeBatch], rules: RenewRules) -> bool:
    """Return True if the acknowledgement batches of one partition are valid by the rules of KafkaApis."""
    highest = AcknowledgeType.RENEW if rules.is_known else AcknowledgeType.REJECT
    before = -1
    for batch in batches:
        types = batch.types
        # KafkaApis.validateAcknowledgementBatches() requires ascending batches, so that one pass can handle
        # them.
        if batch.first > batch.last or batch.first < before or not types:
            return False
        # KIP-932: a single type counts for all offsets of the batch. Otherwise each offset has its own.
        if len(types) > 1 and len(types) != batch.last - batch.first + 1:
            return False
        # RENEW is newer than the other types (KIP-1222), so a request of an older version cannot have it.
        if min(types) < 0 or max(types) > highest:
            return False
        # KIP-1222: a client must set IsRenewAck, because a request that renews fetches nothing.
        if AcknowledgeType.RENEW in types and not rules.is_allowed:
            return False
        before = batch.last
    return True
