"""Share sessions: the partitions that a member of a share group fetches over one connection. No I/O, no clock.

A session is identified by its group and member. It ends with the connection that opened it, or when that connection
gets another home Handler. The caller then releases the records that it holds (`owner_call.py: release_session`).

Epochs follow KIP-932: 0 opens a session, -1 ends it, and any other request must have the previous request's epoch plus
1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from kproc.broker.share.partition.messages import ShareHolder, ShareKey
from kproc.common.errors import ErrorCode, KafkaError

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
# Limit of the partitions of one session. A ShareFetch handles all of them in one step. At the limit that takes 40 ms if
# no record can be acquired (1,060 bytecodes a partition), and 130 ms if each partition has a record (3,200 bytecodes).
SESSION_PARTITIONS_MAX: Final = 2_000
# Limit of the partitions of all sessions of a Handler. Each takes about 200 bytes. Kafka has no such limit.
PARTITIONS_MAX: Final = 200_000

Fields = dict[str, Any]


class SessionPartition(msgspec.Struct, gc=False, eq=False, kw_only=True):
    """One partition of a session."""

    # True if the next response must have a row for the partition even without records or an error.
    must_respond: bool
    # The topic's name, or None until the metadata had the topic. With a name, a missing topic was deleted; without
    # one, it never existed.
    topic_name: str | None = None


class ShareSession:
    """A member's partitions, the epoch of its next request, and the owners that may hold records for it."""

    __slots__ = (
        "connection_id",
        "epoch",
        "holder",
        "is_closed",
        "is_release_due",
        "lock_ms",
        "owners",
        "targets",
        "unsent_count",
    )

    def __init__(self, holder: ShareHolder, connection_id: int, keys: Iterable[ShareKey]) -> None:
        self.holder = holder
        self.connection_id = connection_id
        # Handlers that this session has called. When the session ends, each of them releases the records that the
        # session holds there.
        self.owners: set[int] = set()
        self.is_closed = False
        # Number of requests with acknowledgements that are sent to owners in a later duty cycle. If the session ends
        # before, its records are released after them.
        self.unsent_count = 0
        self.is_release_due = False
        # The duration of a lock (ms), from the last reply of an owner.
        self.lock_ms = 0
        self.start(keys)

    def start(self, keys: Iterable[ShareKey]) -> None:
        """Begin with these partitions. The next request has epoch 1."""
        self.epoch = 1
        # The partitions in the order in which the member named them. A partition that got records moves to the end.
        self.targets = {key: SessionPartition(must_respond=False) for key in keys}

    def update(self, keys: Iterable[ShareKey], forgotten: Iterable[ShareKey]) -> None:
        """Add and remove partitions.

        As in Kafka, a partition that is both added and forgotten is not in the session.
        """
        for key in keys:
            if key not in self.targets:
                self.targets[key] = SessionPartition(must_respond=True)
        for key in forgotten:
            self.targets.pop(key, None)

    def advance(self) -> None:
        """Expect the next epoch. Epochs wrap to 1, because 0 opens a session."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def needs_row(self, key: ShareKey, *, has_records: bool, has_error: bool) -> bool:
        """Return True if a response must have a row for a partition, which the caller then sends.

        Call it once per partition and response. The client learns of a partition when it is new, has records or an
        error, or has no error any more.
        """
        target = self.targets.get(key)
        if target is None:
            # Another request of the client has removed the partition from the session while this one waited.
            return has_records or has_error
        needs = has_records or has_error or target.must_respond
        target.must_respond = has_error
        if has_records:
            self.targets[key] = self.targets.pop(key)
        return needs


class ShareSessions:
    """The sessions of one Handler: at most `group.share.max.share.sessions`, and PARTITIONS_MAX in all of them.

    No group can use up the sessions or the partitions for itself. If a new session is one too many, the group with the
    most sessions loses its least recently used one. That group must have at least two sessions more than the group of
    the new session. If there are too many partitions, the largest sessions of the group with the most partitions are
    closed. That group must keep at least as many partitions as the other group then has.

    Only a member's home knows its epochs and partitions. A client that reaches another home gets
    SHARE_SESSION_NOT_FOUND and opens a new session there.
    """

    def __init__(self, home: int, sessions_max: int) -> None:
        self._home = home
        self._sessions_max = sessions_max
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[int, list[ShareSession]] = {}
        # Sessions by group and member. In each group the session that was used last is the last one.
        self._by_group: dict[str, dict[str, ShareSession]] = {}
        self._partition_count = 0
        self._partitions_by_group: dict[str, int] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """The number of partitions in all sessions."""
        return self._partition_count

    def find(self, group_id: str, member_id: str) -> ShareSession:
        """Return a member's session. Raises SHARE_SESSION_NOT_FOUND."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def open(
        self, group_id: str, member_id: str, connection_id: int, keys: Sequence[ShareKey], now_ns: int
    ) -> tuple[ShareSession, ShareSession | None]:
        """Open a session for a member. Return (the session, the one on another connection that it replaces, or None).

        The caller releases the records of the replaced session, and must have called `make_room` before. As in Kafka, a
        client that opens its session again on the same connection keeps the records that it holds.
        """
        before = self._sessions.get((group_id, member_id))
        if before is not None and before.connection_id == connection_id:
            self._count_partitions(group_id, len(keys) - len(before.targets))
            before.start(keys)
            self._record_use(before)
            return before, None
        # The member has come back on another connection. The old session's records are released, because
        # nobody can acknowledge them over the new connection.
        if before is not None:
            self.close(before)
        # Use the monotonic time as the least number, so that the numbers differ from those of a former process of this
        # Handler.
        self._last_number = max(self._last_number + 1, now_ns)
        holder = ShareHolder(group_id, member_id, self._last_number, self._home)
        session = ShareSession(holder, connection_id, keys)
        self._sessions[group_id, member_id] = session
        self._by_group.setdefault(group_id, {})[member_id] = session
        self._by_connection.setdefault(connection_id, []).append(session)
        self._count_partitions(group_id, len(session.targets))
        return session, before

    def make_room(
        self, group_id: str, member_id: str, keys: Sequence[ShareKey]
    ) -> Sequence[ShareSession] | None:
        """Close sessions of another group, so that a member's session fits the limits.

        Return them, or None if it cannot fit. A session of the member that is replaced does not count. The caller
        releases the records of the closed sessions.
        """
        if len(keys) > SESSION_PARTITIONS_MAX:
            return None
        before = self._sessions.get((group_id, member_id))
        growth = len(keys) - (0 if before is None else len(before.targets))
        victims = self._find_large_victims(group_id, growth)
        if victims is None:
            return None
        if before is None and not victims and len(self._sessions) >= self._sessions_max:
            victim = self._find_victim(group_id)
            if victim is None:
                return None
            victims = [victim]
        for victim in victims:
            self.close(victim)
        return victims

    def _find_victim(self, group_id: str) -> ShareSession | None:
        """Return the session to close for a new one of this group.

        Return None if no group has at least two sessions more than this one.
        """
        most = max(self._by_group.values(), key=len)
        if len(most) < len(self._by_group.get(group_id, ())) + 2:
            return None
        return next(iter(most.values()))

    def _find_large_victims(self, group_id: str, growth: int) -> Sequence[ShareSession] | None:
        """Return the sessions to close so that a group can have `growth` more partitions. None if that is impossible.

        The sessions belong to the group with the most partitions. That group keeps at least as many partitions as the
        group `group_id` then has.
        """
        excess = self._partition_count + growth - PARTITIONS_MAX
        if excess <= 0:
            return ()
        largest, left = max(self._partitions_by_group.items(), key=itemgetter(1))
        wanted = self._partitions_by_group.get(group_id, 0) + growth
        if left - excess < wanted:
            return None
        victims: list[ShareSession] = []
        # Largest sessions first. sorted() is stable, so among sessions of equal size the one that was not used for the
        # longest time comes first.
        by_size = sorted(self._by_group[largest].values(), key=lambda each: len(each.targets), reverse=True)
        while excess > 0:
            victims.append(by_size[len(victims)])
            size = len(victims[-1].targets)
            excess -= size
            left -= size
        return victims if left >= wanted else None

    def _count_partitions(self, group_id: str, growth: int) -> None:
        self._partition_count += growth
        self._partitions_by_group[group_id] = self._partitions_by_group.get(group_id, 0) + growth

    def _record_use(self, session: ShareSession) -> None:
        of_group = self._by_group[session.holder.group_id]
        of_group[session.holder.member_id] = of_group.pop(session.holder.member_id)

    def proceed(
        self, session: ShareSession, epoch: int, keys: Sequence[ShareKey], forgotten: Sequence[ShareKey]
    ) -> Sequence[ShareSession]:
        """Accept a request of a session that is neither its first nor its last.

        Return the sessions of another group that were closed to make room. The caller releases their records.
        Raises INVALID_SHARE_SESSION_EPOCH if the client has missed a response or sent a request twice, and
        SHARE_SESSION_LIMIT_REACHED if the limits do not allow the partitions that it adds.
        """
        if epoch != session.epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        # Check the limits before adding partitions. Otherwise rejected requests could add partitions without a limit.
        size = len({*session.targets, *keys}.difference(forgotten))
        growth = size - len(session.targets)
        group_id = session.holder.group_id
        victims = self._find_large_victims(group_id, growth) if size <= SESSION_PARTITIONS_MAX else None
        if victims is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        for victim in victims:
            self.close(victim)
        session.update(keys, forgotten)
        self._count_partitions(group_id, growth)
        session.advance()
        self._record_use(session)
        return victims

    def close(self, session: ShareSession) -> None:
        """Close a session. The caller releases the records that the session holds."""
        if session.is_closed:
            return
        session.is_closed = True
        holder = session.holder
        del self._sessions[holder.group_id, holder.member_id]
        of_group = self._by_group[holder.group_id]
        del of_group[holder.member_id]
        self._count_partitions(holder.group_id, -len(session.targets))
        if not of_group:
            del self._by_group[holder.group_id], self._partitions_by_group[holder.group_id]
        left = self._by_connection[session.connection_id]
        left.remove(session)
        if not left:
            del self._by_connection[session.connection_id]

    def close_connection(self, connection_id: int) -> list[ShareSession]:
        """Close and return the sessions of a connection that was closed or has another home now."""
        closed = list(self._by_connection.get(connection_id, ()))
        for session in closed:
            self.close(session)
        return closed

    def close_all(self) -> list[ShareSession]:
        """Close and return all sessions, because this Handler is leaving."""
        closed = list(self._sessions.values())
        for session in closed:
            self.close(session)
        return closed


def keys_of(topics: Iterable[Mapping[str, Any]]) -> list[ShareKey]:
    """Return the partitions that a ShareFetch or ShareAcknowledge names, without duplicates, in the request's order."""
    return list(
        dict.fromkeys(
            (topic["topic_id"] or bytes(16), partition["partition_index"])
            for topic in topics
            for partition in topic["partitions"]
        )
    )
