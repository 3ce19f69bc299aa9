"""Clients that come and go: topics made and deleted, odd connections, quotas, listeners, group members, kcat.

Each visitor has a thread, and a visit now and then. A visit may meet any death: a closed connection and Kafka's
retriable errors are counted, everything else is a problem.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

from kproc.client import ClientError
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.soak.clients import PADDING, PARTITIONS
from tests.soak.ledger import Ledger
from tests.support.adapters import kcat
from tests.support.broker import ROOT
from tests.support.configs import set_config
from tests.support.groups import delete_groups
from tests.support.quotas import alter_quotas
from tests.support.raw import (
    CLIENT_ID,
    NO_TOPIC_ID,
    Closed,
    RawClient,
    address_of,
    batch,
    create_topics_fields,
    fetch_fields,
    produce_fields,
    values_of,
)
from tests.support.status import status
from tests.support.wait import PATIENCE_SECONDS

E = ErrorCode
# What Kafka's clients try again after, and what a role's death may be answered with.
RETRIABLE = {
    E.LEADER_NOT_AVAILABLE,
    E.NOT_LEADER_OR_FOLLOWER,
    E.REQUEST_TIMED_OUT,
    E.NETWORK_EXCEPTION,
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_COORDINATOR,
    E.NOT_CONTROLLER,
}
CLOSED = (OSError, Closed, ClientError)
PLAIN = "PLAINTEXT://127.0.0.1:0"
BOTH = PLAIN + ",EXTERNAL://127.0.0.1:0"
QUOTA_BYTES_PER_SECOND = 100_000.0
MEMBER_SECONDS = 6.0
KCAT_RECORDS = 5
FETCH_SECONDS = 20.0  # Longer than a role is ever away.


class Refused(Exception):
    """An answer with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(E(code).name)
        self.code = E(code)


def expect(code: int, *also: ErrorCode) -> None:
    """Raise Refused unless it is no error or one of those."""
    if code and code not in also:
        raise Refused(code)


class Visitor:
    """One kind of visit, repeated with random pauses."""

    seconds = 3.0  # Between two visits, more or less.

    def __init__(self, bootstrap: str, control: str, topic: str, ledger: Ledger, seed: int) -> None:
        self.bootstrap = bootstrap
        self.control = control
        self.topic = topic
        self.ledger = ledger
        self.random = random.Random(f"{type(self).__name__}-{seed}")
        self.errors: Counter[str] = Counter()
        self.problems: list[str] = []
        self.visits = 0
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the visit, then leave nothing behind."""
        self.is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.is_over.wait(self.seconds * self.random.uniform(0.5, 1.5)):
            self._guarded(self.visit)
            self.visits += 1
        self._guarded(self.leave)

    def _guarded(self, step: Any) -> None:
        try:
            step()
        except CLOSED as problem:
            self.errors[type(problem).__name__] += 1
        except Refused as problem:
            self.errors[problem.code.name] += 1
            if problem.code not in RETRIABLE:
                self.problems.append(f"{type(self).__name__}: answered with {problem.code.name}")
        except Exception as problem:  # noqa: BLE001 - the run goes on, and the report has it
            self.problems.append(f"{type(self).__name__}: {type(problem).__name__}: {problem}")

    def visit(self) -> None:
        """One visit."""
        raise NotImplementedError

    def leave(self) -> None:
        """Take back what the visits left; the broker is whole by then."""


class TopicVisitor(Visitor):
    """Topics of few names, made and deleted over and over: each must have its own records and no namesake's."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._count = 0
        # Name -> (tag, partition -> offset -> acknowledged value) while there is such a topic; None: unknown.
        self._known: dict[str, tuple[bytes, dict[int, dict[int, bytes]]] | None] = {}

    def visit(self) -> None:
        name = f"churn-{self.random.randrange(3)}"
        with RawClient(self.bootstrap) as client:
            assert isinstance(client, RawClient)
            if name in self._known:
                self._check(client, name)
                if name not in self._known:
                    return  # Nobody knew whether it was there; now it is not.
                if self.random.random() < 0.5:
                    self._delete(client, name)
                    return
            else:
                self._create(client, name)
            self._produce(client, name)
            self._check(client, name)

    def leave(self) -> None:
        with RawClient(self.bootstrap) as client:
            assert isinstance(client, RawClient)
            for name in list(self._known):
                self._check(client, name)
                self._delete(client, name)

    def _create(self, client: RawClient, name: str) -> None:
        self._known[name] = None  # Until the answer comes: it may be made and the answer lost.
        partitions = self.random.randint(1, 6)
        configs = {"segment.ms": "2000", "retention.ms": "-1"}  # Raw batches are old.
        fields = create_topics_fields(name, partitions=partitions, configs=configs)
        (row,) = client.call(ApiKey.CREATE_TOPICS, 7, fields)["topics"]
        expect(row["error_code"])
        self._count += 1
        self._known[name] = b"%d:" % self._count, {index: {} for index in range(partitions)}

    def _delete(self, client: RawClient, name: str) -> None:
        self._known[name] = None
        (row,) = client.call(ApiKey.DELETE_TOPICS, 4, {"topic_names": [name], "timeout": 10_000})["responses"]
        expect(row["error_code"], E.UNKNOWN_TOPIC_OR_PARTITION)
        del self._known[name]

    def _produce(self, client: RawClient, name: str) -> None:
        known = self._known[name]
        if known is None:
            return
        tag, acknowledged = known
        for partition, offsets in acknowledged.items():
            value = tag + b"%d" % self.random.randrange(1 << 30) + PADDING
            row = client.produce(name, batch(value), partition=partition)
            # Right after it was made, an owner that was paused has not heard of it yet.
            expect(row["error_code"], E.UNKNOWN_TOPIC_OR_PARTITION, *RETRIABLE)
            if not row["error_code"]:
                offsets[row["base_offset"]] = value

    def _check(self, client: RawClient, name: str) -> None:
        known = self._known[name]
        if known is None:
            self._delete(client, name)
            return
        tag, acknowledged = known
        for partition, offsets in acknowledged.items():
            stored = self._stored(client, name, partition, offsets)
            strange = [value for value in stored.values() if not (value or b"").startswith(tag)]
            if strange:
                self.problems.append(f"{name}-{partition} has a namesake's records: {strange[:3]!r}")
            lost = [offset for offset, value in offsets.items() if stored.get(offset) != value]
            if lost:
                self.problems.append(
                    f"lost: {name}-{partition}, acknowledged {sorted(offsets)}, stored {sorted(stored)}"
                )

    def _stored(
        self, client: RawClient, name: str, partition: int, offsets: dict[int, bytes]
    ) -> dict[int, bytes | None]:
        """The partition's records. An answer without any is no proof: its owner may be paused for so long."""
        row: dict[str, Any] = {}
        stored: dict[int, bytes | None] = {}
        until = time.monotonic() + FETCH_SECONDS
        while time.monotonic() < until:
            row = client.fetch(name, 0, partition=partition, max_wait_ms=500 if offsets else 0)
            may_be_new = set() if offsets else {E.UNKNOWN_TOPIC_OR_PARTITION}
            expect(row["error_code"], *may_be_new, *RETRIABLE)
            stored = dict(values_of(row["records"]))
            if stored.keys() >= offsets.keys():
                return stored
        expect(row["error_code"])
        return stored


class TrimVisitor(Visitor):
    """DeleteRecords below what every follower of the steady topic has read."""

    seconds = 5.0

    def visit(self) -> None:
        rows = [
            {"partition_index": index, "offset": max(0, self.ledger.floor(index) - 20)}
            for index in range(PARTITIONS)
        ]
        fields = {"topics": [{"name": self.topic, "partitions": rows}], "timeout": 10_000}
        with RawClient(self.bootstrap) as client:
            (topic,) = client.call(ApiKey.DELETE_RECORDS, 2, fields)["topics"]
        for row in topic["partitions"]:
            expect(row["error_code"])


class QuotaVisitor(Visitor):
    """A quota for what the raw clients produce, there and gone; and a client that runs into it."""

    seconds = 8.0

    def visit(self) -> None:
        self._set(QUOTA_BYTES_PER_SECOND if self.visits % 2 == 0 else None)
        with RawClient(self.bootstrap) as client:
            assert isinstance(client, RawClient)
            fields = produce_fields([("quota", NO_TOPIC_ID, [(0, batch(bytes(50_000)))])])
            for _ in range(3):
                answer = client.call(ApiKey.PRODUCE, 9, fields)
                expect(answer["responses"][0]["partition_responses"][0]["error_code"])
                self.errors["throttled"] += answer["throttle_time"] > 0

    def leave(self) -> None:
        self._set(None)

    def _set(self, value: float | None) -> None:
        with RawClient(self.bootstrap) as client:
            expect(alter_quotas(client, {"client-id": CLIENT_ID}, producer_byte_rate=value))


class ListenerVisitor(Visitor):
    """A second listener, there and gone; while it is there, it serves."""

    seconds = 20.0

    def visit(self) -> None:
        self._set(BOTH)
        address = None
        for _ in range(50):
            if (address := self._bound().get("EXTERNAL")) or self.is_over.wait(0.1):
                break
        if address is None:
            self.errors["not open yet"] += 1
        else:
            with RawClient(address) as stranger:
                stranger.call(ApiKey.METADATA, 9, {"topics": []})
                self.is_over.wait(self.random.uniform(0, 5))
                self._set(PLAIN)
                return
        self._set(PLAIN)

    def leave(self) -> None:
        self._set(PLAIN)

    def _set(self, text: str) -> None:
        with RawClient(self.bootstrap) as client:
            assert isinstance(client, RawClient)
            code, _ = set_config(client, "listeners", text)
        expect(code)

    def _bound(self) -> dict[str, str]:
        shown = status(self.control, timeout_ms=5_000)["listeners"]
        return {name: row["bound"] for name, row in shown.items()}


class OddVisitor(Visitor):
    """Connections that no library makes: half a request, nothing at all, garbage, a reader that does not read."""

    def visit(self) -> None:
        self.random.choice([self._half, self._silent, self._garbage, self._unread])()

    def _open(self) -> socket.socket:
        return socket.create_connection(address_of(self.bootstrap), timeout=10)

    def _stay(self) -> None:
        self.is_over.wait(self.random.uniform(0, 4))

    def _half(self) -> None:
        fields = produce_fields([(self.topic, NO_TOPIC_ID, [(0, batch(bytes(60_000)))])])
        frame = codec.encode_request(ApiKey.PRODUCE, 9, 1, "half", fields)
        with self._open() as sock:
            sock.sendall(frame[: self.random.randrange(1, len(frame))])
            self._stay()

    def _silent(self) -> None:
        with self._open():
            self._stay()

    def _garbage(self) -> None:
        with self._open() as sock, contextlib.suppress(OSError):
            sock.sendall(self.random.randbytes(self.random.randrange(1, 200)))
            self._stay()

    def _unread(self) -> None:
        wanted = [
            (self.topic, NO_TOPIC_ID, [(index, self.ledger.floor(index)) for index in range(PARTITIONS)])
        ]
        frame = codec.encode_request(ApiKey.FETCH, 12, 1, "unread", fetch_fields(wanted))
        with self._open() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(20):
                sock.sendall(frame)
            self._stay()


class KcatVisitor(Visitor):
    """kcat: a few idempotent records to the steady topic, each to be seen by every follower; then a short read."""

    seconds = 6.0

    def visit(self) -> None:
        partition = self.visits % PARTITIONS
        values = [b"kcat%d:%d" % (self.visits, number) + PADDING for number in range(KCAT_RECORDS)]
        lines = b"\n".join(values)
        produce = ["-P", "-X", "enable.idempotence=true", "-X", "message.timeout.ms=60000"]
        if self._run_kcat(partition, *produce, lines=lines) is None:
            return  # Stored or not, nobody was told.
        for value in values:
            self.ledger.acknowledged(partition, None, value)
        read = self._run_kcat(partition, "-C", "-o", "-3", "-c", "3", "-q", "-f", "%s\\n")
        if read is not None and read.count(b"\n") != 3:
            self.problems.append(f"kcat -C printed {read!r}")

    def _run_kcat(self, partition: int, *options: str, lines: bytes = b"") -> bytes | None:
        """What it printed; None when it gave up, as it does as soon as its one broker closes the connection."""
        command = [str(kcat.EXECUTABLE), "-b", self.bootstrap, "-t", self.topic, "-p", str(partition)]
        command += options
        done = subprocess.run(command, input=lines, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
        if not done.returncode:
            return done.stdout
        if b"All broker connections are down" in done.stderr:
            self.errors["kcat gave up"] += 1
        else:
            self.problems.append(
                f"kcat {options[0]} ended with {done.returncode}: {done.stderr.decode()[-500:]}"
            )
        return None


class MemberVisitor(Visitor):
    """A group for a few seconds, with one member of each make in turn, which leaves or dies; then its deletion."""

    seconds = 10.0
    makes = ("confluent", "kafka-python", "aiokafka")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._groups: set[str] = set()

    def visit(self) -> None:
        group = f"visitors-{self.visits}"
        self._groups.add(group)
        make = self.makes[self.visits % len(self.makes)]
        command = [sys.executable, "-m", "tests.support.group_member", make, "--bootstrap", self.bootstrap]
        command += ["--topic", self.topic, "--group", group]
        member = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            self.is_over.wait(MEMBER_SECONDS)
            dies = self.random.random() < 0.3
            member.kill() if dies else member.terminate()
            said, errors = member.communicate(timeout=PATIENCE_SECONDS)
        finally:
            member.kill()
            member.wait()
        # On a busy machine SIGTERM can come before the program handles it.
        if not dies and "startup_complete" in said and "shutdown_complete" not in said:
            self.problems.append(f"{make}: its consumer did not close: {errors[-500:]}")
        self.errors["members with records"] += "records_consumed" in said
        self.leave()

    def leave(self) -> None:
        with RawClient(self.bootstrap) as client:
            assert isinstance(client, RawClient)
            for group in sorted(self._groups):
                code = delete_groups(client, group)[group]
                if code == E.NON_EMPTY_GROUP:
                    continue  # Its member died and its session goes on.
                expect(code, E.GROUP_ID_NOT_FOUND)
                self._groups.discard(group)


VISITORS: tuple[type[Visitor], ...] = (
    TopicVisitor,
    TrimVisitor,
    QuotaVisitor,
    ListenerVisitor,
    OddVisitor,
    KcatVisitor,
    MemberVisitor,
)
