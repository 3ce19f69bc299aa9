"""Members of a share group (KIP-932) on one epoll: each ShareFetch accepts the records of the answer before.

Each member is a share session on a connection of its own, with one request under way. Every record has to be
acquired, once, and accepted.
"""

from __future__ import annotations

import selectors
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from kproc.wire.header import ApiKey
from tests.support.configs import set_config
from tests.support.groups import find_coordinator
from tests.support.raw import RawClient

_GROUP_RESOURCE: Final = 32
_FETCH_VERSION, _ACKNOWLEDGE_VERSION = 2, 2
_ACCEPT: Final = 1
_MAX_WAIT_MS, _MAX_BYTES = 500, 50 << 20
SECONDS_MAX: Final = 300.0
_ASSIGNED_SECONDS_MAX: Final = 60.0
_HEARTBEAT_SECONDS: Final = 0.2
_PENDING_SECONDS: Final = 0.1
# While the broker creates the state of a partition, or the coordinator loads.
_MAY_PASS: Final = (14, 15, 16)


class ShareMember:
    """One share session."""

    def __init__(self, bootstrap: str, group_id: str, topic: str, batch_records: int) -> None:
        self.client = RawClient(bootstrap, timeout=60.0)
        self.accepted: dict[int, int] = {}
        self._who = {"group_id": group_id, "member_id": str(uuid.uuid4())}
        self._topic = topic
        self._member_epoch = 0
        self._epoch = 0
        self._batch_records = batch_records
        self._assigned: list[dict[str, Any]] = []
        self._acquired: dict[tuple[bytes, int], list[tuple[int, int]]] = {}

    def heartbeat(self) -> int:
        """Send a heartbeat of the group, and return the number of partitions that the member has."""
        fields = {**self._who, "member_epoch": self._member_epoch, "subscribed_topic_names": [self._topic]}
        answer = self.client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, fields)
        if answer["error_code"] not in _MAY_PASS:
            assert answer["error_code"] == 0, answer
            self._member_epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                self._assigned = answer["assignment"]["topic_partitions"]
        return sum(len(row["partitions"]) for row in self._assigned)

    def send_fetch(self) -> None:
        """Send a ShareFetch with the acknowledgements of what was acquired before."""
        fields = {
            **self._who,
            "share_session_epoch": self._epoch,
            "max_wait": _MAX_WAIT_MS,
            "min_bytes": 1,
            "max_bytes": _MAX_BYTES,
            "max_records": self._batch_records,
            "batch_size": self._batch_records,
            "topics": self._session_rows() if self._epoch == 0 else self._acknowledgements(),
            "forgotten_topics_data": [],
        }
        self._epoch += 1
        self.client.send(ApiKey.SHARE_FETCH, _FETCH_VERSION, fields)

    def on_answer(self) -> int:
        """Read the answer of a ShareFetch. Return the number of records that the broker has accepted now."""
        answer = self.client.receive(ApiKey.SHARE_FETCH, _FETCH_VERSION)[1]
        assert answer["error_code"] == 0, answer["error_message"]
        rows = ((topic["topic_id"], row) for topic in answer["responses"] for row in topic["partitions"])
        done, self._acquired = self._acquired, {}
        for topic_id, row in rows:
            assert row["error_code"] in (0, *_MAY_PASS), row
            assert row["acknowledge_error_code"] == 0, row
            ranges = [(each["first_offset"], each["last_offset"]) for each in row["acquired_records"]]
            assert all(each["delivery_count"] == 1 for each in row["acquired_records"]), "delivered again"
            if ranges:
                self._acquired[topic_id, row["partition_index"]] = ranges
        return self._count(done)

    def end_session(self) -> int:
        """End the session with the last acknowledgements. Return the number of accepted records."""
        fields = {**self._who, "share_session_epoch": -1, "topics": self._acknowledgements()}
        answer = self.client.call(ApiKey.SHARE_ACKNOWLEDGE, _ACKNOWLEDGE_VERSION, fields)
        codes = {row["error_code"] for topic in answer["responses"] for row in topic["partitions"]}
        assert {answer["error_code"], *codes} == {0}, answer
        done, self._acquired = self._acquired, {}
        self.client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, {**self._who, "member_epoch": -1})
        return self._count(done)

    def _count(self, done: Mapping[tuple[bytes, int], list[tuple[int, int]]]) -> int:
        total = 0
        for (_, partition), ranges in done.items():
            count = sum(last - first + 1 for first, last in ranges)
            self.accepted[partition] = self.accepted.get(partition, 0) + count
            total += count
        return total

    def _session_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "topic_id": row["topic_id"],
                "partitions": [
                    {"partition_index": each, "acknowledgement_batches": []} for each in row["partitions"]
                ],
            }
            for row in self._assigned
        ]

    def _acknowledgements(self) -> list[dict[str, Any]]:
        rows: dict[bytes, list[dict[str, Any]]] = {}
        for (topic_id, partition), ranges in self._acquired.items():
            batches = [
                {"first_offset": first, "last_offset": last, "acknowledge_types": [_ACCEPT]}
                for first, last in ranges
            ]
            rows.setdefault(topic_id, []).append(
                {"partition_index": partition, "acknowledgement_batches": batches}
            )
        return [{"topic_id": topic_id, "partitions": each} for topic_id, each in rows.items()]


def open_members(
    bootstrap: str, group_id: str, topic: str, *, count: int, batch_records: int
) -> list[ShareMember]:
    """Let so many members join a share group that reads the topic from its beginning, until all have partitions."""
    with RawClient(bootstrap, timeout=60.0) as client:
        find_coordinator(client, group_id)
        name, value = "share.auto.offset.reset", "earliest"
        assert set_config(client, name, value, kind=_GROUP_RESOURCE, resource=group_id)[0] == 0
    members = [ShareMember(bootstrap, group_id, topic, batch_records) for _ in range(count)]
    deadline = time.monotonic() + _ASSIGNED_SECONDS_MAX
    # Each of them heartbeats in each round, or its session would end.
    while 0 in [each.heartbeat() for each in members]:
        assert time.monotonic() < deadline, "the members got no partitions"
        time.sleep(_HEARTBEAT_SECONDS)
    return members


def accept_all(members: list[ShareMember], records: int) -> float:
    """Fetch and accept so many records. Return the seconds from the first ShareFetch to the last acceptance."""
    begun = time.monotonic()
    accepted = 0
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.client.socket, selectors.EVENT_READ, member)
            member.send_fetch()
        waiting = set(members)
        while accepted < records:
            assert time.monotonic() < begun + SECONDS_MAX, f"{accepted} of {records} records were accepted"
            for key, _ in selector.select(_PENDING_SECONDS):
                accepted += key.data.on_answer()
                waiting.discard(key.data)
                if accepted < records:
                    key.data.send_fetch()
                    waiting.add(key.data)
    took = time.monotonic() - begun
    for member in waiting:
        accepted += member.on_answer()
    accepted += sum(member.end_session() for member in members)
    assert accepted == records, f"{accepted} records were accepted instead of {records}"
    return took
