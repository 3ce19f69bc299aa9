"""Members of consumer groups (KIP-848) on one epoll, as the Java client behaves: join, reconcile, heartbeat.

A member sends its whole subscription when it joins. It names the partitions that it owns in the heartbeat after each
new assignment, which it sends at once, and nothing but its epoch in all others.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

from bench.groups import ANSWER_SECONDS_MAX, MemberConnection, Members
from kproc.wire import codec
from kproc.wire.header import ApiKey

_API: Final = ApiKey.CONSUMER_GROUP_HEARTBEAT
_VERSION: Final = 1
_REBALANCE_MS: Final = 300_000
SETTLE_SECONDS_MAX: Final = 180.0


class ConsumerMember(MemberConnection):
    """A connection with one member."""

    def __init__(self, address: tuple[str, int], group_id: str, topic: str) -> None:
        super().__init__(address, group_id)
        self.epoch = 0
        self.interval_seconds = 0.0
        self.sent_at = 0.0
        self.partitions = 0
        self.is_waiting = False
        self._topic = topic
        self._member_id = str(uuid.uuid4())
        self._owned: list[dict[str, Any]] = []
        self._last_answer = b""
        self._heartbeat = b""

    def join(self) -> None:
        """Send the heartbeat with which a member joins."""
        self._send(
            self._encode(
                rebalance_timeout=_REBALANCE_MS, subscribed_topic_names=[self._topic], topic_partitions=[]
            )
        )

    def heartbeat(self) -> None:
        """Send a heartbeat without anything new."""
        self._send(self._heartbeat)

    def _on_frame(self, frame: bytes) -> int:
        self.is_waiting = False
        if frame != self._last_answer:
            self._on_change(frame)
        return 1

    def leave(self) -> None:
        """Send the heartbeat with which a member leaves."""
        self.epoch = -1
        self._send(self._encode())

    def _on_change(self, frame: bytes) -> None:
        answer = codec.decode_response(_API, _VERSION, frame)[1]
        if answer["error_code"]:
            self.errors += 1
            raise AssertionError(
                f"{self.group_id}: heartbeat: {answer['error_code']} {answer['error_message']}"
            )
        self.epoch = answer["member_epoch"]
        self.interval_seconds = answer["heartbeat_interval"] / 1000
        self._heartbeat = self._encode()
        self._last_answer = frame
        assignment = answer["assignment"]
        if assignment is not None and assignment["topic_partitions"] != self._owned:
            self._owned = assignment["topic_partitions"]
            self.partitions = sum(len(row["partitions"]) for row in self._owned)
            self._send(self._encode(topic_partitions=self._owned))

    def _encode(self, **more: Any) -> bytes:
        fields = {
            "group_id": self.group_id,
            "member_id": self._member_id,
            "member_epoch": self.epoch,
            "topic_partitions": None,
            **more,
        }
        return codec.encode_request(_API, _VERSION, 1, "bench", fields)

    def _send(self, frame: bytes) -> None:
        self.is_waiting = True
        self.sent_at = time.monotonic()
        self.socket.sendall(frame)


class ConsumerMembers(Members):
    """All of them on one epoll."""

    members: list[ConsumerMember]

    def __init__(self, members: list[ConsumerMember], share: int) -> None:
        """Prepare members of groups whose members get `share` partitions each."""
        super().__init__(members)
        self._share = share

    @property
    def heartbeat_seconds(self) -> float:
        """Return the interval that the broker chose."""
        return self.members[0].interval_seconds

    def settle(self) -> None:
        """Let all members join at once, and wait until every group is stable."""
        for member in self.members:
            member.join()
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not self._are_stable():
            now = time.monotonic()
            assert now < deadline, f"the groups did not settle in {SETTLE_SECONDS_MAX:g} s"
            idle = [each for each in self.members if not each.is_waiting]
            for member in idle:
                if member.sent_at + member.interval_seconds <= now:
                    member.heartbeat()
            due = min((each.sent_at + each.interval_seconds for each in idle), default=deadline)
            self.take(min(due - now, 0.05))

    def drain(self) -> None:
        """Wait until no answer is missing."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while any(each.is_waiting for each in self.members):
            assert time.monotonic() < deadline, "a heartbeat was not answered"
            self.take(0.2)

    def leave(self) -> None:
        """Let all members leave, and close their connections."""
        self.drain()
        for member in self.members:
            member.leave()
        self.drain()
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for member in self.members:
            member.socket.close()
        self._epoll.close()

    def _are_stable(self) -> bool:
        """Return True if every member owns its share, and all members of a group are in one epoch."""
        epochs: dict[str, int] = {}
        return all(
            each.partitions == self._share
            and not each.is_waiting
            and epochs.setdefault(each.group_id, each.epoch) == each.epoch
            for each in self.members
        )
