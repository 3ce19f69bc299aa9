"""Incremental fetch sessions (KIP-227): the broker stores a consumer's partitions, and Fetch names only changes.

A session belongs to the home Handler of the connection that created it. A client that reconnects may reach another
Handler. It then gets FETCH_SESSION_ID_NOT_FOUND and starts again with a full Fetch. The protocol allows this error at
any time, and it is rare.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from kproc.broker.cluster.image import ClusterImage, TopicImage
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.hot import FetchPartition, FetchRequest
from kproc.wire.hot_fetch_request import FETCH_ROWS_MAX

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
_EVICTION_NS: Final = 120_000_000_000  # Kafka's min.incremental.fetch.session.eviction.ms: 2 minutes.
# A session that was idle for this long is discarded when another one is created. Its client then has to create a new
# one.
_IDLE_NS: Final = 600_000_000_000
# Limits of memory: of all sessions of one Handler together, and of a single session.
BYTES_MAX: Final = 64 << 20
SESSION_BYTES_MAX: Final = 16 << 20
# Approximate memory (bytes) of a FetchTarget with its request, without the topic's name.
_TARGET_BYTES: Final = 500


class FetchTarget:
    """One partition of a Fetch, and the offsets that its client got last."""

    __slots__ = ("found_name", "index", "last_offsets", "name", "request", "topic_id")

    def __init__(self, name: str | None, topic_id: bytes | None, request: FetchPartition) -> None:
        self.name = name
        self.topic_id = topic_id
        # The topic's name if the request has only the topic's id, once the id was found in the metadata.
        self.found_name: str | None = None
        self.index = request.index
        self.request = request
        # Log start offset, end offset and last stable offset in the last response.
        self.last_offsets = (-1, -1, -1)

    @property
    def key(self) -> tuple[str | bytes | None, int]:
        return (self.name if self.name is not None else self.topic_id, self.index)

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the target in bytes."""
        return _TARGET_BYTES + len(self.name or "")

    def topic(self, image: ClusterImage) -> TopicImage | None:
        """Return the topic, or None if it does not exist. As in Kafka, remember the name of a topic known by id."""
        if self.name is not None:
            return image.topics_by_name.get(self.name)
        topic = image.topics_by_id.get(self.topic_id or b"")
        if topic is not None:
            self.found_name = topic.name
        return topic

    def find_name(self, image: ClusterImage) -> str | None:
        """Return the topic's name. None if the metadata has no topic with the id, and never had it in this session."""
        if self.name is not None:
            return self.name
        self.topic(image)
        return self.found_name


class FetchSession:
    """The partitions of one consumer, in the order in which the next Fetch reads them."""

    __slots__ = ("epoch", "id", "last_used_ns", "size_bytes", "targets", "uses_topic_ids")

    def __init__(
        self, session_id: int, targets: Iterable[FetchTarget], now_ns: int, *, uses_topic_ids: bool
    ) -> None:
        self.id = session_id
        self.epoch = 1
        self.targets = {target.key: target for target in targets}
        self.size_bytes = sum(target.size_bytes for target in self.targets.values())
        self.last_used_ns = now_ns
        self.uses_topic_ids = uses_topic_ids

    def update(self, request: FetchRequest) -> None:
        """Apply an incremental request: changed, added and forgotten partitions. Then expect the next epoch."""
        for target in targets_of(request):
            known = self.targets.get(target.key)
            if known is None:
                self.targets[target.key] = target
                self.size_bytes += target.size_bytes
            else:
                known.request = target.request
        for name, topic_id, indexes in request.forgotten:
            for index in indexes:
                forgotten = self.targets.pop((name if name is not None else topic_id, index), None)
                if forgotten is not None:
                    self.size_bytes -= forgotten.size_bytes
        # KIP-227: 0 means a new session and -1 the end of one, so epochs wrap to 1.
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def served(self, keys: Iterable[tuple[str | bytes | None, int]]) -> None:
        """Move partitions that got data to the end of the queue, so that max.bytes cannot starve the others."""
        for key in keys:
            target = self.targets.pop(key, None)
            if target is not None:
                self.targets[key] = target


class SessionCache:
    """The sessions of one Handler, bounded by max.incremental.fetch.session.cache.slots and by their memory."""

    def __init__(self, slots_max: int) -> None:
        self._slots_max = slots_max
        self._sessions: dict[int, FetchSession] = {}  # Least recently used session first.
        self.size_bytes = 0
        self._random = random.Random()  # noqa: S311 - session ids are no secrets

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self, request: FetchRequest, version: int, now_ns: int
    ) -> tuple[list[FetchTarget], FetchSession | None, bool]:
        """Return (the partitions to fetch, their session or None, True if the response has only changed partitions).

        The request may create, change or end a session. Raises KafkaError with the same session error as Kafka.
        """
        if version < 7 or request.session_epoch == FINAL_EPOCH:
            self._discard(request.session_id)
            return list(targets_of(request)), None, False
        if request.session_epoch == INITIAL_EPOCH:
            self._discard(request.session_id)
            targets = list(targets_of(request))
            return targets, self._create(targets, now_ns, uses_topic_ids=version >= 13), False
        session = self._get_for(request, version)
        session.last_used_ns = now_ns
        self._update(session, request)
        self._discard_oldest()
        if not session.targets:
            self._discard(session.id)
            # As in Kafka, a session without partitions ends. This request may have forgotten the last ones.
            return list(targets_of(request)), None, False
        return list(session.targets.values()), session, True

    def _get_for(self, request: FetchRequest, version: int) -> FetchSession:
        """Return the session that an incremental request continues, now the most recently used one.

        Raises KafkaError if the session does not exist, or does not fit the request.
        """
        session = self._sessions.pop(request.session_id, None)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._sessions[session.id] = session
        # The client has missed a response or repeated a request, so client and broker disagree about the session's
        # partitions.
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        # KIP-516: a client that switches to topic ids must create a new session, because this one stores its partitions
        # by name.
        if session.uses_topic_ids != (version >= 13):
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return session

    def _update(self, session: FetchSession, request: FetchRequest) -> None:
        """Apply an incremental request. Discard a session that becomes too large, and raise KafkaError."""
        before_bytes = session.size_bytes
        session.update(request)
        self.size_bytes += session.size_bytes - before_bytes
        if len(session.targets) > FETCH_ROWS_MAX or session.size_bytes > SESSION_BYTES_MAX:
            # Many small incremental requests must not build a session that takes longer to read than the largest
            # allowed Fetch.
            self._discard(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def targets(self, session_id: int) -> list[FetchTarget]:
        """Return the partitions of a session. Empty if the session does not exist."""
        session = self._sessions.get(session_id)
        return list(session.targets.values()) if session is not None else []

    def topic_names(self, session_id: int, image: ClusterImage) -> list[str]:
        """Return the names of a session's topics. Empty if the session does not exist."""
        session = self._sessions.get(session_id)
        targets = session.targets.values() if session is not None else ()
        return list(filter(None, dict.fromkeys(target.find_name(image) for target in targets)))

    def reads(self, session_id: int, name: str, topic_id: bytes) -> bool:
        """Return True if a session has a partition of that topic."""
        session = self._sessions.get(session_id)
        return session is not None and any(key[0] in (name, topic_id) for key in session.targets)

    def _create(
        self, targets: list[FetchTarget], now_ns: int, *, uses_topic_ids: bool
    ) -> FetchSession | None:
        while (oldest := next(iter(self._sessions.values()), None)) is not None:
            if now_ns - oldest.last_used_ns < _IDLE_NS:
                break
            self._discard(oldest.id)
        if len(self._sessions) >= self._slots_max:
            if oldest is None or now_ns - oldest.last_used_ns < _EVICTION_NS:
                return None  # No room: the client continues with full Fetches.
            self._discard(oldest.id)
        # A random id: after a restart of the broker, a client of the former process must not hit another client's
        # session.
        session_id = self._random.randint(1, _EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._random.randint(1, _EPOCH_MAX)
        session = FetchSession(session_id, targets, now_ns, uses_topic_ids=uses_topic_ids)
        if session.size_bytes > SESSION_BYTES_MAX:
            return None
        self._sessions[session_id] = session
        self.size_bytes += session.size_bytes
        self._discard_oldest()
        return session

    def _discard(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.size_bytes -= session.size_bytes

    def _discard_oldest(self) -> None:
        """Discard the least recently used sessions until the others fit into BYTES_MAX."""
        while self.size_bytes > BYTES_MAX:
            self._discard(next(iter(self._sessions)))


def targets_of(request: FetchRequest) -> Iterable[FetchTarget]:
    """Yield the partitions that a request names, in the request's order."""
    for name, topic_id, partitions in request.topics:
        for partition in partitions:
            yield FetchTarget(name, topic_id, partition)
