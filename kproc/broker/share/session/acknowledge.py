"""Acknowledgements of a client: their checks, and the calls to the owners of the partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import Lost
from kproc.broker.share.partition.messages import (
    SHARE_ACKNOWLEDGE,
    AcknowledgeBatch,
    AcknowledgedPart,
    AcknowledgePart,
    AcknowledgeParts,
    AcknowledgeType,
    PartsAcknowledged,
    ShareKey,
)
from kproc.broker.share.session.owner_call import call_owner, release_session
from kproc.broker.share.session.sessions import ShareSession
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.cluster.image import PartitionImage
    from kproc.broker.request.context import Services

Fields = dict[str, Any]
OnAcknowledged = Callable[[dict[ShareKey, AcknowledgedPart]], None]
# Limit of the acknowledgements in one call to an owner, unless they are of one partition. A type of a single record
# counts 1, and a batch or a partition 10. 19,000 alternating types take 0.2 s.
_COST_AT_ONCE: Final = 20_000
_COST_OF_BATCH: Final = 10
# Limit of the separate ranges of offsets of one partition, which the owner handles in one step of about 0.15 s. These
# are enough to acknowledge every other one of 10,000 records, the highest share.partition.max.record.locks.
RANGES_MAX: Final = 5_000
# A batch with one type for more offsets than this is not joined with its neighbours. Its type would be repeated, which
# saves the owner no time from about 40 offsets on. With this limit, a request has at most 1,000,000 types.
_REPEATED_MAX: Final = 20


def has_acknowledgements(topics: Sequence[Fields]) -> bool:
    """Return True if a ShareFetch acknowledges records."""
    return any(partition["acknowledgement_batches"] for topic in topics for partition in topic["partitions"])


def has_renew_ack(request: Fields) -> bool:
    """Return True if the request has IsRenewAck, with which it may renew locks (KIP-1222, version 2)."""
    return bool(request.get("is_renew_ack", False))


def find_partition(services: Services, key: ShareKey) -> PartitionImage | None:
    """Return a partition by its topic's id. None if it does not exist."""
    topic = services.image.topics_by_id.get(key[0])
    if topic is None or not 0 <= key[1] < len(topic.partitions):
        return None
    return topic.partitions[key[1]]


class Acknowledgements:
    """The acknowledgements of one request, from their checks to the answers of all owners.

    request: a ShareFetch or ShareAcknowledge. denied: names of topics that the client may not read.
    `on_done` gets the result of each partition that the request names, once. It may be called before `start` returns.
    """

    __slots__ = ("_has_later", "_left", "_on_done", "_parts", "_services", "_session", "results")

    def __init__(
        self,
        services: Services,
        session: ShareSession,
        request: Fields,
        denied: Collection[str],
        on_done: OnAcknowledged,
    ) -> None:
        self._services = services
        self._session = session
        self._on_done = on_done
        self._left = 0
        self._has_later = False  # True if the acknowledgements did not fit into one call to each owner.
        self.results: dict[ShareKey, AcknowledgedPart] = {}
        self._parts: dict[ShareKey, AcknowledgePart] = {}
        type_max = AcknowledgeType.RENEW if has_renew_ack(request) else AcknowledgeType.REJECT
        for topic in request["topics"]:
            for row in topic["partitions"]:
                self._add(topic["topic_id"] or bytes(16), row, denied, type_max)

    def _add(self, topic_id: bytes, row: Fields, denied: Collection[str], type_max: AcknowledgeType) -> None:
        """Validate a partition's acknowledgements in Kafka's order. Store the error, or add them to those to send."""
        key = topic_id, row["partition_index"]
        batches = [
            AcknowledgeBatch(each["first_offset"], each["last_offset"], each["acknowledge_types"])
            for each in row["acknowledgement_batches"]
        ]
        are_valid = _are_valid(batches, type_max)
        if are_valid:
            batches = join_adjacent(batches)
        topic = self._services.image.topics_by_id.get(topic_id)
        code = ErrorCode.NONE
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif not are_valid or len(batches) > RANGES_MAX:
            code = ErrorCode.INVALID_REQUEST
        elif topic.name in denied:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif find_partition(self._services, key) is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.results[key] = AcknowledgedPart(int(code))
        if not code and batches:
            self._parts[key] = AcknowledgePart(key, batches)

    def start(self) -> None:
        """Call the owners. If the request acknowledges no records, finish at once."""
        self._left = 1
        if not self._parts:
            # As in Kafka, a request without valid acknowledgements gets rows only for partitions with errors.
            self.results = {key: result for key, result in self.results.items() if result.error}
        self._send(list(self._parts))
        self._finish_one()

    def _send(self, keys: Sequence[ShareKey]) -> None:
        """Send each owner the acknowledgements of its partitions in one call, or the first of them if there are many.

        The others follow in later duty cycles, so that a member that has acquired tens of thousands of records can
        acknowledge them in one request without holding up all other clients.
        """
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
        for owner, owned in by_owner.items():
            count = self._count_at_once(owned)
            sent, later = owned[:count], owned[count:]
            if later and not self._has_later:
                self._has_later = True
                self._session.unsent_count += 1
            body = AcknowledgeParts(version, self._session.holder, [self._parts[key] for key in sent])
            call_owner(
                services, owner, SHARE_ACKNOWLEDGE, body, partial(self._on_reply, sent, later, version)
            )

    def _count_at_once(self, keys: Sequence[ShareKey]) -> int:
        """Return how many partitions the next call to their owner has, at least 1."""
        cost = 0
        for count, key in enumerate(keys):
            batches = self._parts[key].acknowledgements
            cost += _COST_OF_BATCH * (1 + len(batches)) + sum(len(batch.types) for batch in batches)
            if count and cost > _COST_AT_ONCE:
                return count
        return len(keys)

    def _on_reply(
        self,
        keys: Sequence[ShareKey],
        later: Sequence[ShareKey],
        version: int,
        reply: PartsAcknowledged | Lost,
    ) -> None:
        """Store an owner's results. Send the partitions that have moved to another owner to that owner.

        Then send the partitions `later`, which did not fit into the call.
        """
        if later:
            self._left += 1
            self._services.owner.purgatory.defer(partial(self._send_more, later))
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
            self._services.owner.transfers.when_image(reply.known, partial(self._send_more, moved))
        else:
            self._finish_one()

    def _send_more(self, keys: Sequence[ShareKey]) -> None:
        self._send(keys)
        self._finish_one()

    def _finish_one(self) -> None:
        self._left -= 1
        if self._left:
            return
        if self._has_later:
            self._session.unsent_count -= 1
            if self._session.is_release_due:
                release_session(self._services, self._session)
        self._on_done(self.results)


def _are_valid(batches: Sequence[AcknowledgeBatch], type_max: AcknowledgeType) -> bool:
    """Return True if the acknowledgement batches of one partition are valid by the rules of KafkaApis.

    type_max: the highest type that the request may have.
    """
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
        # KIP-1222: RENEW, the highest type, needs IsRenewAck in the request, because such a request fetches nothing.
        if min(types) < 0 or max(types) > type_max:
            return False
        before = batch.last
    return True


def join_adjacent(batches: Sequence[AcknowledgeBatch]) -> list[AcknowledgeBatch]:
    """Return the batches of one partition with adjacent ones joined. They must be valid.

    librdkafka sends a batch for each change of the type. For single records, the owner handles one batch with all types
    more than twice as fast.
    """
    joined: list[AcknowledgeBatch] = []
    for batch in batches:
        before = joined[-1] if joined else None
        if (
            before is not None
            and before.last + 1 == batch.first
            and _can_repeat(before)
            and _can_repeat(batch)
        ):
            before.types = _types_of_all(before)
            before.types += _types_of_all(batch)
            before.last = batch.last
        else:
            joined.append(batch)
    return joined


def _can_repeat(batch: AcknowledgeBatch) -> bool:
    size = batch.last - batch.first + 1
    return size <= _REPEATED_MAX or size == len(batch.types)


def _types_of_all(batch: AcknowledgeBatch) -> list[int]:
    """Return a type for each offset."""
    size = batch.last - batch.first + 1
    return batch.types if len(batch.types) == size else batch.types * size
