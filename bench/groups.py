"""Measure the cost of consumer groups: heartbeats of many groups, and one look at all of them.

    python -m bench.groups [--groups 1000] [--members 3] [--seconds 20]

Starts a broker, lets every member join on a connection of its own, and then only heartbeats, each member once in
three seconds as the clients' default is. Reports the broker's CPU while that goes on, and the time of ListGroups,
DescribeGroups and OffsetFetch over all groups, one request each.
"""

from __future__ import annotations

import argparse
import heapq
import resource
import select
import socket
import struct
import time
from collections.abc import Iterable
from typing import Any

from bench import proc
from kproc import Broker
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.groups import (
    commit,
    describe,
    find_coordinator,
    join_fields,
    list_groups,
    subscription,
)
from tests.support.raw import RawClient

HEARTBEAT_SECONDS = 3.0
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION = 3, 2, 3
SETTLE_SECONDS_MAX = 60.0
LOAD_SECONDS_MAX = 30.0
# For the last heartbeats of a run.
ANSWER_SECONDS_MAX = 10.0
# The members of a group arrive within this, so that each group rebalances once.
REBALANCE_DELAY_MS = 3_000
# COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
MAY_PASS = (14, 15, 16)


class MemberConnection:
    """A connection with one member of a group. A subclass handles each response."""

    def __init__(self, address: tuple[str, int], group_id: str) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.group_id = group_id
        self.errors = 0
        self._received = b""

    def on_readable(self) -> int:
        """Read what has arrived. Return the number of heartbeats that were answered."""
        self._received += self.socket.recv(65_536)
        answered = 0
        while len(self._received) >= 4:
            length = struct.unpack_from(">i", self._received)[0]
            if len(self._received) < 4 + length:
                break
            frame, self._received = self._received[4 : 4 + length], self._received[4 + length :]
            answered += self._on_frame(frame)
        return answered

    def _on_frame(self, frame: bytes) -> int:
        """Handle one response. Return 1 if it answers a heartbeat, else 0."""
        raise NotImplementedError


class Member(MemberConnection):
    """One connection that joins, syncs and then only heartbeats."""

    def __init__(self, address: tuple[str, int], group_id: str, topic: str) -> None:
        super().__init__(address, group_id)
        self.is_stable = False
        self._waits_for = ApiKey.JOIN_GROUP
        self._heartbeat = b""
        fields = join_fields(group_id, protocols=[{"name": "range", "metadata": subscription(topic)}])
        self.socket.sendall(codec.encode_request(ApiKey.JOIN_GROUP, JOIN_VERSION, 1, "bench", fields))

    def heartbeat(self) -> None:
        """Send one."""
        self.socket.sendall(self._heartbeat)

    def _on_frame(self, frame: bytes) -> int:
        if self._waits_for == ApiKey.JOIN_GROUP:
            self._on_joined(codec.decode_response(ApiKey.JOIN_GROUP, JOIN_VERSION, frame)[1])
        elif self._waits_for == ApiKey.SYNC_GROUP:
            answer = codec.decode_response(ApiKey.SYNC_GROUP, SYNC_VERSION, frame)[1]
            assert answer["error_code"] == 0, answer
            self.is_stable, self._waits_for = True, ApiKey.HEARTBEAT
        else:
            self.errors += frame[-2:] != b"\0\0"
            return 1
        return 0

    def _on_joined(self, answer: dict[str, Any]) -> None:
        assert answer["error_code"] == 0, answer
        who = {
            "group_id": self.group_id,
            "generation_id": answer["generation_id"],
            "member_id": answer["member_id"],
            "group_instance_id": None,
        }
        self._heartbeat = codec.encode_request(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, 2, "bench", who)
        assignments = [
            {"member_id": each["member_id"], "assignment": bytes(40)} for each in answer["members"]
        ]
        sync = codec.encode_request(
            ApiKey.SYNC_GROUP, SYNC_VERSION, 3, "bench", {**who, "assignments": assignments}
        )
        self._waits_for = ApiKey.SYNC_GROUP
        self.socket.sendall(sync)


class Members:
    """All of them on one epoll."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members
        self._by_fd = {member.socket.fileno(): member for member in members}
        self._epoll = select.epoll()
        for fd in self._by_fd:
            self._epoll.register(fd, select.EPOLLIN)

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two heartbeats of a member."""
        return HEARTBEAT_SECONDS

    def take(self, seconds: float) -> int:
        """Wait that long for answers at most; how many heartbeats were answered."""
        return sum(self._by_fd[fd].on_readable() for fd, _ in self._epoll.poll(max(0.0, seconds)))

    def settle(self) -> None:
        """Until everybody is in a stable group."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not all(member.is_stable for member in self.members):
            assert time.monotonic() < deadline, "the groups did not settle"
            self.take(0.2)

    def run(self, seconds: float) -> tuple[int, int]:
        """(heartbeats sent, answered), evenly spread."""
        begun = time.monotonic()
        count, interval = len(self.members), self.heartbeat_seconds
        due = [(begun + interval * n / count, n) for n in range(count)]
        sent = answered = 0
        while (now := time.monotonic()) < begun + seconds:
            while due[0][0] <= now:
                at, number = due[0]
                self.members[number].heartbeat()
                sent += 1
                heapq.heapreplace(due, (at + interval, number))
            answered += self.take(min(due[0][0] - now, 0.05))
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while answered < sent and time.monotonic() < deadline:
            answered += self.take(0.2)
        return sent, answered


def measure(
    bootstrap: str, pids: Iterable[int], groups: int, members: int, seconds: float, prefix: str = "g"
) -> dict[str, float]:
    """Joins, heartbeats for so long, and a look at all groups, on any broker; wrong answers are AssertionErrors.

    `prefix` names the groups and their topic: another one for each call on the same broker.
    """
    allow_descriptors()
    host, _, port = bootstrap.rpartition(":")
    topic = f"{prefix}-topic"
    group_ids = [f"{prefix}-{number}" for number in range(groups)]
    with RawClient(bootstrap, timeout=60.0) as client:
        make_topic(client, topic, members)
        for group_id in group_ids:
            commit_all(client, group_id, topic, members)
        begun = time.monotonic()
        address = (host, int(port))
        everybody = Members([Member(address, each, topic) for each in group_ids for _ in range(members)])
        try:
            everybody.settle()
            joined = time.monotonic() - begun
            sizes = {len(describe(client, group_id)["members"]) for group_id in group_ids[:50]}
            assert sizes == {members}, f"groups of {sizes} instead of {members}"
            pids = list(pids)
            before, begun = proc.cpu_seconds(pids), time.monotonic()
            sent, answered = everybody.run(seconds)
            took = time.monotonic() - begun
            used = proc.cpu_seconds(pids) - before
            errors = sum(member.errors for member in everybody.members)
            assert (answered, errors) == (sent, 0), f"{sent} heartbeats, {answered} answers, {errors} errors"
            return {
                "join_seconds": joined,
                "heartbeats": sent,
                "heartbeats_per_second": sent / took,
                "broker_cpu_seconds": used,
                "cpu_percent": 100 * used / took,
                **look_at_all(client, group_ids, members),
            }
        finally:
            for member in everybody.members:
                member.socket.close()


def make_topic(client: RawClient, topic: str, partitions: int) -> None:
    """The topic that the groups commit for, and the coordinator's own.

    Created, not asked for: a Metadata request for a topic that is not there makes it, with one partition.
    """
    client.create_topic(topic, partitions=partitions)
    find_coordinator(client, "g0")


def commit_all(client: RawClient, group_id: str, topic: str, partitions: int) -> None:
    """Commits for every partition; waits while the coordinator is loading (Kafka, with a new offsets topic)."""
    deadline = time.monotonic() + LOAD_SECONDS_MAX
    offsets = dict.fromkeys(range(partitions), 1)
    while (codes := set(commit(client, group_id, topic, offsets).values())) != {0}:
        # Anything else is a wrong answer, and waiting does not make it right.
        assert codes <= {0, *MAY_PASS}, f"commit: errors {codes}"
        assert time.monotonic() < deadline, (
            f"{group_id}: its coordinator is not there in {LOAD_SECONDS_MAX:g} s"
        )
        time.sleep(0.01)


def look_at_all(client: RawClient, group_ids: list[str], members: int) -> dict[str, float]:
    """Milliseconds of one request each about all groups."""
    begun = time.perf_counter()
    listed = list_groups(client)
    list_ms = 1000 * (time.perf_counter() - begun)
    assert set(group_ids) <= listed.keys(), "ListGroups does not show all groups"
    begun = time.perf_counter()
    rows = client.call(ApiKey.DESCRIBE_GROUPS, 5, {"groups": group_ids})["groups"]
    describe_ms = 1000 * (time.perf_counter() - begun)
    assert {row["group_state"] for row in rows} == {"Stable"}, "a group is not stable"
    begun = time.perf_counter()
    fields = {"groups": [{"group_id": each, "topics": None} for each in group_ids]}
    rows = client.call(ApiKey.OFFSET_FETCH, 8, fields)["groups"]
    offset_fetch_ms = 1000 * (time.perf_counter() - begun)
    assert {len(row["topics"][0]["partitions"]) for row in rows} == {members}, "offsets are missing"
    return {"list_ms": list_ms, "describe_ms": describe_ms, "offset_fetch_ms": offset_fetch_ms}


def allow_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 20_000)), hard))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--handlers", type=int, default=1)
    options = parser.parse_args()
    allow_descriptors()
    settings = {
        "group.initial.rebalance.delay.ms": REBALANCE_DELAY_MS,
        "num.io.threads": options.handlers,
    }
    with Broker(settings=settings) as broker:
        pids = proc.process_tree(int(broker.pid))
        found = measure(broker.bootstrap, pids, options.groups, options.members, options.seconds)
    each = 1e6 * found["broker_cpu_seconds"] / found["heartbeats"]
    print(
        f"{options.groups} groups of {options.members}: joined in {found['join_seconds']:.1f} s, "
        f"{found['heartbeats_per_second']:.0f} heartbeats/s, {found['cpu_percent']:.1f} % of a core, {each:.0f} us each"
    )
    for name in ("list", "describe", "offset_fetch"):
        print(f"{name.replace('_', ' ')} of all: {found[name + '_ms']:.0f} ms")


if __name__ == "__main__":
    main()
