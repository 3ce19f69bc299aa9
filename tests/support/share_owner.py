"""FakeOwners: owners of share partitions by interface, for tests of share sessions. One object for all Handlers.

A record is available, or held by a session, or accepted. There are no locks, and nothing is persisted.
"""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.calls.calls import OnResult, Reply
from kproc.broker.peers.registered_calls import REGISTERED_CALLS, RegisteredCall
from kproc.broker.request.context import Services
from kproc.broker.role.purgatory import DelayedOperation
from kproc.broker.share.partition.messages import (
    SHARE_ACKNOWLEDGE,
    SHARE_ACQUIRE,
    SHARE_RELEASE,
    SHARE_WATCH,
    AcknowledgedPart,
    AcknowledgeParts,
    AcknowledgeType,
    AcquiredPart,
    AcquiredRange,
    AcquireParts,
    PartsAcknowledged,
    PartsAcquired,
    ReleaseHolder,
    ShareKey,
    WatchParts,
)
from kproc.common.errors import ErrorCode

LOCK_MS = 12_345
FREE, DONE = None, "accepted"


class _WatchedParts(DelayedOperation):
    def __init__(
        self, owners: FakeOwners, services: Services, body: WatchParts, on_reply: OnResult[Reply]
    ):
        super().__init__(body.deadline_ns)
        self._owners, self._services, self._body, self._on_reply = owners, services, body, on_reply

    def try_complete(self) -> bool:
        sizes = [self._owners.available(self._services, part) for part in self._body.parts]
        return any(sizes) and self.complete()

    def on_complete(self) -> None:
        self._on_reply(Reply())


class FakeOwners:
    """The records that the owners of all Handlers hold, and their calls: (Handler, name of the call, body)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, str, Any]] = []
        self.holders: dict[ShareKey, dict[int, Any]] = {}  # Offset -> session that holds it, DONE or FREE.
        self.errors: dict[ShareKey, int] = {}
        self.ack_errors: dict[ShareKey, tuple[int, str]] = {}
        for call, handle in (
            (SHARE_ACQUIRE, self._acquire),
            (SHARE_ACKNOWLEDGE, self._acknowledge),
            (SHARE_WATCH, self._watch),
            (SHARE_RELEASE, self._release),
        ):
            monkeypatch.setitem(REGISTERED_CALLS, call.name, RegisteredCall(call, handle))

    def names(self) -> list[tuple[int, str]]:
        """(Handler, name of the call) of each call since the last look."""
        calls, self.calls = self.calls, []
        return [(handler, name) for handler, name, _ in calls]

    def held(self) -> int:
        """Return the number of records that sessions hold."""
        return sum(
            holder not in (FREE, DONE) for offsets in self.holders.values() for holder in offsets.values()
        )

    def accepted(self) -> int:
        return sum(holder == DONE for offsets in self.holders.values() for holder in offsets.values())

    def _log(self, services: Services, key: ShareKey) -> Any:
        topic = services.image.topics_by_id[key[0]]
        return services.owner.partitions.get(topic.name, topic.partitions[key[1]]).log

    def available(self, services: Services, key: ShareKey) -> list[int]:
        """The offsets that can be acquired."""
        if key in self.errors:
            return []
        log = self._log(services, key)
        offsets = self.holders.setdefault(key, {})
        return [at for at in range(log.state.high_watermark) if offsets.get(at) is FREE]

    def _acquire(self, services: Services, body: AcquireParts, on_reply: OnResult[PartsAcquired]) -> None:
        self.calls.append((services.handler_index, "acquire", body))
        left, results = body.records_max, []
        for key in body.parts:
            if key in self.errors:
                results.append(AcquiredPart(self.errors[key]))
                continue
            found = self.available(services, key)[: max(0, left)]
            left -= len(found)
            if not found:
                results.append(AcquiredPart())
                continue
            for at in found:
                self.holders[key][at] = body.holder.session
            read = self._log(services, key).read(found[0], body.bytes_max, minimum_one=True, committed=False)
            acquired = [AcquiredRange(at, at, 1) for at in found]
            results.append(AcquiredPart(ranges=read.ranges, bytes=read.bytes, acquired=acquired))
        on_reply(PartsAcquired(parts=results, lock_ms=LOCK_MS, known=services.image.version))

    def _acknowledge(
        self, services: Services, body: AcknowledgeParts, on_reply: OnResult[PartsAcknowledged]
    ) -> None:
        self.calls.append((services.handler_index, "acknowledge", body))
        results = []
        for part in body.parts:
            key = part.key
            if key in self.ack_errors:
                results.append(AcknowledgedPart(*self.ack_errors[key]))
                continue
            code = 0
            for batch in part.acknowledgements:
                for at in range(batch.first, batch.last + 1):
                    kind = batch.types[at - batch.first if len(batch.types) > 1 else 0]
                    if self.holders[key].get(at) != body.holder.session:
                        code = int(ErrorCode.INVALID_RECORD_STATE)
                    elif kind != AcknowledgeType.RENEW:
                        self.holders[key][at] = FREE if kind == AcknowledgeType.RELEASE else DONE
            results.append(AcknowledgedPart(code))
        on_reply(PartsAcknowledged(parts=results, lock_ms=LOCK_MS, known=services.image.version))
        self.wake(services, [part.key for part in body.parts])

    def wake(self, services: Services, keys: list[ShareKey]) -> None:
        for topic_id, index in keys:
            services.owner.purgatory.check((services.image.topics_by_id[topic_id].name, index))

    def _watch(self, services: Services, body: WatchParts, on_reply: OnResult[Reply]) -> None:
        self.calls.append((services.handler_index, "watch", body))
        operation = _WatchedParts(self, services, body, on_reply)
        keys = [(services.image.topics_by_id[topic_id].name, index) for topic_id, index in body.parts]
        if not operation.try_complete():
            services.owner.purgatory.watch(operation, [*keys, ("watch", *body.watch)])

    def _release(self, services: Services, body: ReleaseHolder, on_reply: OnResult[Reply]) -> None:
        self.calls.append((services.handler_index, "release", body))
        for key, offsets in self.holders.items():
            topic = services.image.topics_by_id.get(key[0])
            if topic is None or topic.partitions[key[1]].owner != services.handler_index:
                continue
            for at, holder in offsets.items():
                if holder == body.holder.session:
                    offsets[at] = FREE
            self.wake(services, [key])
        on_reply(Reply())
