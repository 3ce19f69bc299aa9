"""One group of consumers of several makes, each a process that can be closed, killed and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.broker.group.records import GroupSnapshot, decode_record
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import decode_records, parse_header
from tests.support.groups import describe, find_coordinator, offsets_of
from tests.support.java_tools import JVM
from tests.support.kafka_jars import classpath
from tests.support.raw import RawClient
from tests.support.wait import PATIENCE_SECONDS, stretched, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
SESSION_MS = (
    6_000  # group.min.session.timeout.ms; longer on a busy machine, where a member may not run for seconds.
)
# A JVM alone takes half a minute to begin on a machine with ten times as many busy processes as cores.
START_SECONDS = 120.0
STATIC_SESSION_MS = 30_000  # A static member's next process takes seconds to begin, on a busy machine many.
HEARTBEAT_MS = 300
JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
# In the consumer protocol the broker sets what a classic member brings.
CONSUMER_PROTOCOL_SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.session.timeout.ms": SESSION_MS,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.consumer.assignment.interval.ms": 0,
}
OFFSETS_TOPIC = "__consumer_offsets"


def find_repetitions(
    events: list[dict[str, Any]],
    topic: str,
    commits: list[tuple[int, int, int]],
    *,
    was_stopped: bool = False,
) -> list[str]:
    """Return the records that a member with these events must not have got.

    commits: (milliseconds, partition, offset) of the successful commits of all members. One that succeeded before a
    partition was assigned moves the member behind it. In one assignment of a partition no offset comes twice.
    was_stopped: the member was stopped for a time (SIGSTOP). librdkafka may then deliver a Fetch response of the former
    assignment of a partition in the next one. Such records begin where the member was in the former assignment.
    """
    found, lowest, former = [], dict[int, int](), dict[int, int]()
    for event in events:
        parts = [each for each in event.get("partitions", ()) if each["topic"] == topic]
        indexes = {each["partition"] for each in parts}
        if event["name"] == "partitions_assigned":
            for index in indexes:
                earlier = (at for when, part, at in commits if part == index and when < event["timestamp"])
                lowest[index] = max(earlier, default=0)
        elif event["name"] == "partitions_revoked":
            former |= {index: lowest.pop(index) for index in indexes if index in lowest}
        elif event["name"] == "records_consumed":
            for each in parts:
                # Records that the member processes when its partition is gone belong to no assignment.
                due = lowest.get(each["partition"])
                if due is None:
                    continue
                is_late = was_stopped and each["minOffset"] == former.get(each["partition"])
                if each["minOffset"] < due and not is_late:
                    found.append(f"partition {each['partition']}: {due} was due, came {each['minOffset']}")
                lowest[each["partition"]] = max(due, each["maxOffset"] + 1) if is_late else each["maxOffset"] + 1
    return found


class MemberProcess:
    """One consumer and what it has said."""

    def __init__(self, make: str, command: list[str], environment: dict[str, str], topic: str) -> None:
        self.make = make
        self._topic = topic
        self.events: list[dict[str, Any]] = []
        self.has_begun = False
        self.was_stopped = False
        # The partitions that it has, as far as it has said. Kept, since a scene looks a hundred times a second.
        self.owned: set[int] = set()
        self.owned_elsewhere: set[tuple[str, int]] = (
            set()
        )  # Partitions of other topics, of a subscription by a regex.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                event = json.loads(line)
                parts = [(each["topic"], each["partition"]) for each in event.get("partitions", ())]
                indexes = {index for topic, index in parts if topic == self._topic}
                elsewhere = {(topic, index) for topic, index in parts if topic != self._topic}
                if event["name"] == "partitions_assigned":
                    self.owned = self.owned | indexes
                    self.owned_elsewhere = self.owned_elsewhere | elsewhere
                elif event["name"] == "partitions_revoked":
                    self.owned = self.owned - indexes
                    self.owned_elsewhere = self.owned_elsewhere - elsewhere
                elif event["name"] == "startup_complete":
                    self.has_begun = True
                self.events.append(event)

    def consumed(self, since: int = 0) -> set[tuple[int, int]]:
        """(partition, offset) of the records that it got, from an event on."""
        found: set[tuple[int, int]] = set()
        for event in list(self.events[since:]):
            if event["name"] == "records_consumed":
                for each in event["partitions"]:
                    if each["topic"] != self._topic:
                        continue
                    assert each["count"] == each["maxOffset"] - each["minOffset"] + 1, event
                    offsets = range(each["minOffset"], each["maxOffset"] + 1)
                    found |= {(each["partition"], offset) for offset in offsets}
        return found

    def committed(self) -> dict[int, int]:
        """Return by partition the highest offset that it was told is committed."""
        highest: dict[int, int] = {}
        for event in list(self.events):
            if event["name"] == "offsets_committed" and event["success"]:
                for each in event["offsets"]:
                    if each["topic"] == self._topic:
                        partition = each["partition"]
                        highest[partition] = max(highest.get(partition, 0), each["offset"])
        return highest

    def commit_times(self) -> list[tuple[int, int, int]]:
        """(milliseconds, partition, offset) of each commit that succeeded."""
        return [
            (event["timestamp"], each["partition"], each["offset"])
            for event in list(self.events)
            if event["name"] == "offsets_committed" and event["success"]
            for each in event["offsets"]
            if each["topic"] == self._topic
        ]

    def signal(self, number: int) -> None:
        self.was_stopped |= number == signal.SIGSTOP
        self._process.send_signal(number)

    def close(self) -> None:
        """SIGTERM: it leaves the group, unless it is a static member."""
        self.signal(signal.SIGTERM)
        self._wait()
        assert any(event["name"] == "shutdown_complete" for event in self.events), self.said()

    def kill(self) -> None:
        """SIGKILL: nobody is told."""
        self.signal(signal.SIGKILL)
        self._wait()

    def _wait(self) -> None:
        self._process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def said(self) -> str:
        """The last of what it wrote."""
        self._errors.seek(0)
        events = "\n".join(json.dumps(event) for event in self.events[-8:])
        return f"{self.make}:\n{events}\n{self._errors.read()[-1500:]}"

    def end(self) -> None:
        """Whatever state it is in."""
        if self._process.poll() is None:
            self.kill()
        self._errors.close()


class GroupScene:
    """A topic that is written to all the time, and the members that read it."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        group: str,
        *,
        strategy: str = "range",
        protocol: str = "classic",
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.group = group
        self.strategy = strategy
        self.protocol = protocol
        self.members: list[MemberProcess] = []
        self._past: list[MemberProcess] = []
        self._seen_committed: dict[int, int] = {}
        # The newest generation below an offset of the partition of the group's records.
        self._generation, self._generation_end = 0, 0
        self.produced: set[tuple[int, int]] = set()
        self._stop = threading.Event()
        self._producer = threading.Thread(target=self._produce)
        self._config = tempfile.NamedTemporaryFile("w", suffix=".properties")  # noqa: SIM115
        self._config.write(f"heartbeat.interval.ms={HEARTBEAT_MS}\nmax.poll.records=200\n")
        self._config.flush()
        self._consumer_config = tempfile.NamedTemporaryFile("w", suffix=".properties")  # noqa: SIM115
        self._consumer_config.write("max.poll.records=200\n")
        self._consumer_config.flush()

    def __enter__(self) -> GroupScene:
        with RawClient(self.bootstrap) as client:
            find_coordinator(client, self.group)
        self._producer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._producer.join(PATIENCE_SECONDS)
        for member in (*self.members, *self._past):
            if problem is not None:
                problem.add_note(member.said())
            member.end()
        self._config.close()
        self._consumer_config.close()

    # -- members -------------------------------------------------------------------------------------------------

    def start(
        self,
        *makes: str,
        instances: bool = False,
        protocol: str | None = None,
        subscription: str | None = None,
        commit: str = "sync",
    ) -> list[MemberProcess]:
        """New members, whose processes have begun; with `instances` each is a static one, named after its make."""
        protocol = protocol or self.protocol
        subscription = subscription or self.topic
        started = [
            self._start(make, make if instances else None, protocol, subscription, commit) for make in makes
        ]
        self.members += started
        wait_until(
            lambda: all(member.has_begun for member in started), seconds=START_SECONDS, what="their processes"
        )
        return started

    def _start(
        self, make: str, instance: str | None, protocol: str, subscription: str, commit: str
    ) -> MemberProcess:
        session_ms = str(max(STATIC_SESSION_MS if instance else SESSION_MS, stretched(SESSION_MS // 2)))
        if make == "java":
            command = ["java", *JVM, "-cp", classpath(), "org.apache.kafka.tools.VerifiableConsumer"]
            command += ["--bootstrap-server", self.bootstrap, "--topic", subscription]
            command += ["--group-id", self.group]
            command += ["--group-instance-id", instance] if instance else []
            if protocol == "consumer":
                command += ["--group-protocol", protocol, "--command-config", self._consumer_config.name]
            else:
                command += ["--session-timeout", session_ms, "--command-config", self._config.name]
                command += ["--assignment-strategy", JAVA_ASSIGNORS[self.strategy]]
        else:
            command = [sys.executable, "-m", "tests.support.group_member", make]
            command += ["--bootstrap", self.bootstrap, "--topic", subscription, "--group", self.group]
            command += ["--strategy", self.strategy, "--session-ms", session_ms]
            command += ["--protocol", protocol, "--commit", commit]
            command += ["--instance", instance] if instance else []
        return MemberProcess(make, command, dict(os.environ), self.topic)

    def of(self, make: str) -> MemberProcess:
        """The first living member of a make."""
        return next(member for member in self.members if member.make == make)

    def close(self, *members: MemberProcess) -> None:
        """They leave, one after the other."""
        for member in members:
            member.close()
            self._forget(member)

    def kill(self, *members: MemberProcess) -> None:
        """They die."""
        for member in members:
            member.kill()
            self._forget(member)

    def _forget(self, member: MemberProcess) -> None:
        self.members.remove(member)
        self._past.append(member)

    # -- what must hold --------------------------------------------------------------------------------------------

    def settle(self, seconds: float = 40.0, *, among: list[MemberProcess] | None = None) -> None:
        """Until the group is stable and every partition has one owner, the members as many as each other."""
        members = self.members if among is None else among
        low, more = divmod(self.partitions, len(members))
        wanted = sorted([low] * (len(members) - more) + [low + 1] * more)

        def settled() -> bool:
            shares = [member.owned for member in members]
            assert sorted(map(len, shares)) == wanted, [(each.make, sorted(each.owned)) for each in members]
            assert set().union(*shares) == set(range(self.partitions)), shares
            row = self._describe()
            assert (row["group_state"], len(row["members"])) == ("Stable", len(members)), row["group_state"]
            return True

        wait_until(settled, seconds=seconds, what=f"{len(members)} members that share the topic")
        self.check_committed()

    def _describe(self) -> dict[str, Any]:
        """Return the group's row of the API of the protocol that it has now."""
        with RawClient(self.bootstrap) as client:
            fields = {"group_ids": [self.group], "include_authorized_operations": False}
            (row,) = client.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, fields)["groups"]
            return row if row["error_code"] == 0 else describe(client, self.group)

    def check_committed(self) -> None:
        """No committed offset has gone back, nor is below one that a member was told is committed."""
        for member in (*self.members, *self._past):
            for partition, offset in member.committed().items():
                self._seen_committed[partition] = max(offset, self._seen_committed.get(partition, 0))
        found = self.committed()
        for partition, offset in self._seen_committed.items():
            assert found.get(partition, 0) >= offset, f"partition {partition}: {offset}, now {found}"
        self._seen_committed.update(found)

    def generation(self) -> int:
        """The newest generation that the coordinator wrote down: one for each rebalance."""
        index = partition_for(self.group, self._offsets_partitions())
        newest = self._generation
        with RawClient(self.bootstrap) as client:
            start = client.list_offset(OFFSETS_TOPIC, -2, partition=index)["offset"]
            position = max(start, self._generation_end)
            end = client.end_offset(OFFSETS_TOPIC, partition=index)
            while position < end:
                view = memoryview(client.fetch(OFFSETS_TOPIC, position, partition=index)["records"])
                at = 0
                while at + HEADER_BYTES <= len(view):
                    header = parse_header(view, at)
                    if at + header.total_bytes > len(view):
                        break
                    # Markers of other tests' transactions are no records of groups.
                    batch = view[at : at + header.total_bytes]
                    for record in () if header.is_control else decode_records(batch):
                        decoded = decode_record(record.key, record.value)
                        value = decoded[1] if isinstance(decoded, tuple) else None
                        if isinstance(value, GroupSnapshot) and value.group_id == self.group:
                            newest = max(newest, value.generation)
                    at += header.total_bytes
                    position = header.last_offset + 1
        self._generation, self._generation_end = newest, position
        return newest

    def _offsets_partitions(self) -> int:
        with RawClient(self.bootstrap) as client:
            return len(client.describe_topic(OFFSETS_TOPIC)["partitions"])

    def committed(self) -> dict[int, int]:
        """Partition -> offset."""
        with RawClient(self.bootstrap) as client:
            offsets = offsets_of(client, self.group).items()
            return {partition: offset for (topic, partition), offset in offsets if topic == self.topic}

    def first_offsets(self, members: list[MemberProcess]) -> dict[int, int]:
        """Return by partition the first offset that one of these members got."""
        firsts: dict[int, int] = {}
        for partition, offset in sorted(set().union(*(member.consumed() for member in members))):
            firsts.setdefault(partition, offset)
        return firsts

    def wait_reading(self, members: list[MemberProcess]) -> None:
        """Wait until these members have got a record of every partition, so that each has a first offset.

        A group that is stable at once may have committed all that was produced so far.
        """
        wait_until(
            lambda: len(self.first_offsets(members)) == self.partitions, seconds=40, what="a record of each partition"
        )

    def finish_producing(self) -> None:
        """Nothing new comes; what was produced has been acknowledged."""
        self._stop.set()
        self._producer.join(PATIENCE_SECONDS)

    def wait_delivered(self, seconds: float = 30.0) -> None:
        """Every record that was acknowledged has come to somebody."""

        def delivered() -> bool:
            found = set().union(*(member.consumed() for member in (*self.members, *self._past)))
            missing = sorted(self.produced - found)
            assert not missing, f"{len(missing)} missing: {missing[:5]}"
            return True

        wait_until(delivered, seconds=seconds, what="every record is delivered")
        self.check_committed()
        if self.protocol == "consumer":
            self.check_repetitions()

    def check_repetitions(self) -> None:
        """No record came twice, unless its first reader had not committed it when the second one got its partition."""
        everybody = [*self.members, *self._past]
        commits = [commit for member in everybody for commit in member.commit_times()]
        assert commits
        for member in everybody:
            found = find_repetitions(
                list(member.events), self.topic, commits, was_stopped=member.was_stopped
            )
            assert not found, (member.make, found[:5])

    def grow(self, partitions: int) -> None:
        """Add partitions to the topic."""
        parts = [NewPartitions(self.topic, partitions)]
        AdminClient({"bootstrap.servers": self.bootstrap}).create_partitions(parts)[self.topic].result(PATIENCE_SECONDS)
        self.partitions = partitions

    def _produce(self) -> None:
        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                self.produced.add((message.partition(), message.offset()))

        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        number = 0
        # Members commit what each poll brings: more records would only be more commits.
        while not self._stop.wait(0.1):
            try:
                producer.produce(
                    self.topic, value=b"%d" % number, partition=number % self.partitions, on_delivery=on_delivery
                )
            except KafkaException:
                # The producer does not know yet that the topic has grown.
                producer.list_topics(self.topic, timeout=PATIENCE_SECONDS)
                continue
            number += 1
            producer.poll(0)
        producer.flush(PATIENCE_SECONDS)
