"""A share group of KafkaShareConsumers (`ShareMember.java`), each in a JVM that can be closed, killed and paused."""

from __future__ import annotations

import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from confluent_kafka import Producer

from kproc.wire.header import ApiKey
from tests.support.adapters.transactional import read_messages
from tests.support.configs import set_config
from tests.support.either_broker import EitherBroker
from tests.support.groups import find_coordinator
from tests.support.java_programs import JavaProgram, program_command
from tests.support.kafka_jars import classpath
from tests.support.raw import RawClient
from tests.support.share_deliveries import Disturbances, History, Place, dead_letter_problems
from tests.support.wait import PATIENCE_SECONDS, wait_until

GROUP_RESOURCE, TOPIC_RESOURCE = 32, 2
LOCK_MS = 15_000
# The first letters of rules that end with an acceptance, whatever the mode.
ACCEPTED_AT_LAST = "aln"
# Members are missed in seconds.
SHARE_SETTINGS = {
    "group.share.min.session.timeout.ms": 6_000,
    "group.share.session.timeout.ms": 6_000,
    "group.share.min.heartbeat.interval.ms": 500,
    "group.share.heartbeat.interval.ms": 500,
    "group.share.record.lock.duration.ms": LOCK_MS,
    "group.share.assignment.interval.ms": 0,
    "group.share.min.assignment.interval.ms": 0,
}
PRODUCER = {"enable.idempotence": True, "linger.ms": 5, "reconnect.backoff.max.ms": 200, "log_level": 0}


class ShareMember(JavaProgram):
    """One member. Its number is its name in the history."""

    def __init__(
        self, number: int, command: list[str], errors: Path, on_line: Callable[[int, str], None]
    ) -> None:
        self.number = number
        self.delivered = 0
        self._tell = on_line
        self.has_begun = False
        self.has_closed = False
        super().__init__(command, errors, self._on_line)

    def _on_line(self, line: str) -> None:
        if line == "ready":
            self.has_begun = True
        elif line == "closed":
            self.has_closed = True
        elif line.startswith("d "):
            fields = line.split(" ")
            self.delivered += int(fields[5]) - int(fields[4]) + 1
        self._tell(self.number, line)


class ShareScene:
    """A topic, its share group, and what its members have said."""

    def __init__(
        self, broker: EitherBroker, directory: Path, topic: str, group: str, *, lock_ms: int = LOCK_MS
    ) -> None:
        self.broker, self.topic, self.group, self.lock_ms = broker, topic, group, lock_ms
        self.history = History()
        self.members: list[ShareMember] = []
        self.produced: dict[str, set[Place]] = {}
        self._directory = directory
        self._started = 0
        self._disturbances = Disturbances([], [], set())

    def __enter__(self) -> ShareScene:
        with RawClient(self.broker.bootstrap) as client:
            find_coordinator(client, self.group)
        self.configure("share.auto.offset.reset", "earliest")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None:
            missing = sorted(self._missing())
            some = [
                (place, self.history.deliveries.get(place), self.history.answers.get(place))
                for place in missing[:3]
            ]
            problem.add_note(f"{len(missing)} records were not accepted: {some}; {self._disturbances}")
        for member in self.members:
            if problem is not None:
                problem.add_note(f"member {member.number} had {member.delivered}: {member.said()}")
            member.kill()

    def configure(
        self, name: str, value: str, *, resource: str | None = None, kind: int = GROUP_RESOURCE
    ) -> None:
        """Set a setting of the group, or of another resource."""
        with RawClient(self.broker.bootstrap) as client:
            assert set_config(client, name, value, kind=kind, resource=resource or self.group)[0] == 0

    # -- records

    def produce(self, rules: Iterable[str], partitions: int) -> None:
        """Send a record for each rule. `produced` has their places by the first letter."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, **PRODUCER})
        for number, rule in enumerate(rules):
            places = self.produced.setdefault(rule[0], set())

            def on_delivery(error: object, message: object, places: set[Place] = places) -> None:
                assert error is None, error
                places.add((message.topic(), message.partition(), message.offset()))  # type: ignore[attr-defined]

            value, partition = f"{rule} {number}", number % partitions
            while True:
                try:
                    producer.produce(self.topic, value, partition=partition, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        assert producer.flush(PATIENCE_SECONDS) == 0

    # -- members

    def start(
        self, count: int = 1, mode: str = "sync", topics: str | None = None, **settings: str
    ) -> list[ShareMember]:
        """Start members and wait until their processes have begun. Names of settings have _ in place of each dot."""
        started = []
        for _ in range(count):
            more = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
            arguments = (self.broker.bootstrap, self.group, topics or self.topic, mode, *more)
            command = program_command("ShareMember", classpath(), *arguments)
            errors = self._directory / f"member-{self._started}.log"
            started.append(ShareMember(self._started, command, errors, self.history.add))
            self._started += 1
        self.members += started
        wait_until(lambda: all(each.has_begun for each in started), seconds=60, what="their processes")
        return started

    def kill(self, member: ShareMember) -> None:
        """Send SIGKILL to a member."""
        begin = now_ms()
        member.kill()
        self._gone(member, begin)

    def close(self, *members: ShareMember) -> None:
        """Let members leave the group."""
        for member in members:
            begin = now_ms()
            assert member.close() == 0, member.said()
            assert member.has_closed, member.said()
            self._gone(member, begin)

    def _gone(self, member: ShareMember, begin_ms: int) -> None:
        self.members.remove(member)
        self._disturbances.deaths.append((begin_ms, now_ms(), member.number))

    def pause(self, member: ShareMember) -> None:
        """Stop a process. Its records go to others when their locks or its session end."""
        begin = now_ms()
        member.signal(signal.SIGSTOP)
        self._disturbances.deaths.append((begin, now_ms(), member.number))
        self._disturbances.stale.add(member.number)

    def resume(self, member: ShareMember) -> None:
        member.signal(signal.SIGCONT)

    def kill_role(self, source: random.Random) -> None:
        """Kill a random role of kproc. Its successor has begun at the return."""
        begin = now_ms()
        if self.broker.kill_role(source) is not None:
            self._disturbances.roles.append((begin, now_ms()))

    # -- what must hold

    def wait_until_each_has_more(self, count: int = 1) -> None:
        """Wait until each member got `count` more records."""
        before = {member: member.delivered for member in self.members}
        wait_until(
            lambda: all(member.delivered >= had + count for member, had in before.items()),
            seconds=60,
            what="each member gets records",
        )

    def wait_accepted(self, seconds: float = 60.0) -> None:
        """Wait until every record whose rule ends with an acceptance was accepted."""
        wanted = sum(len(places) for rule, places in self.produced.items() if rule in ACCEPTED_AT_LAST)
        # A look at each record takes a second for each 300,000 of them.
        wait_until(lambda: self.history.delivered >= wanted, seconds=seconds, what=f"{wanted} deliveries")
        wait_until(lambda: not self._missing(), seconds=seconds, what="every record is accepted")

    def wait_drained(self, seconds: float = 60.0) -> None:
        """Wait until the group has no record left that is available or acquired."""

        def lag() -> int:
            group = {"group_id": self.group, "topics": None}
            with RawClient(self.broker.bootstrap) as client:
                answer = client.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, {"groups": [group]})
            (row,) = answer["groups"]
            assert row["error_code"] == 0, row
            parts = [part for topic in row["topics"] for part in topic["partitions"]]
            assert all(part["lag"] >= 0 for part in parts), parts
            return sum(part["lag"] for part in parts)

        wait_until(lambda: lag() == 0, seconds=seconds, what="no record is left")

    def _missing(self) -> set[Place]:
        wanted = set().union(*(places for rule, places in self.produced.items() if rule in ACCEPTED_AT_LAST))
        return wanted - self.history.accepted(self._disturbances)

    def check_dead_letters(self, topic: str, partitions: int, rules: str) -> None:
        """Check that exactly the records of these rules have a dead letter, and none has two."""
        wanted = set().union(*(self.produced[rule] for rule in rules))

        def all_letters() -> dict[Place, list[int]]:
            found = self._dead_letters(topic, partitions)
            missing = sorted(wanted - found.keys())
            assert not missing, (len(missing), missing[:5])
            return found

        letters = wait_until(all_letters, seconds=30, what="a dead letter of each record")
        problems = list(dead_letter_problems(letters, wanted))
        assert not problems, (len(problems), self._disturbances, problems[:5])

    def _dead_letters(self, topic: str, partitions: int) -> dict[Place, list[int]]:
        """Return the times in ms of the dead letters of each record that has some in `topic`."""
        found: dict[Place, list[int]] = defaultdict(list)
        for message in read_messages(self.broker.bootstrap, topic, partitions, isolation="read_uncommitted"):
            headers = {name: (value or b"").decode() for name, value in message.headers()}
            assert headers["__dlq.errors.group"] == self.group, headers
            place = (f"__dlq.errors.{part}" for part in ("topic", "partition", "offset"))
            name, index, offset = (headers[part] for part in place)
            found[name, int(index), int(offset)].append(message.timestamp()[1])
        return found

    def check(self) -> None:
        """No record was delivered without a reason, and counts are right."""
        problems = list(self.history.problems(self.lock_ms, self._disturbances))
        assert not problems, (len(problems), self._disturbances, problems[:5])


def now_ms() -> int:
    return int(time.time() * 1000)
