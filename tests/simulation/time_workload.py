"""Jumper: advances the broker's time by seconds to days, and judges what must have expired and what must not.

Each round leaves a transaction open, a member of a group silent, records with a retention, and a delegation token where
clients log in. Then it moves time by kproc's own operation. Everything older than its limit must be gone within 200 ms
after the answer, in whatever order the roles heard of it, and everything younger must be there.
"""

from __future__ import annotations

from typing import Any, Final

from kproc.client.errors import ClientError
from kproc.client.own_operations import STATUS_KEY, decode_result, encode_operation
from kproc.wire.header import ApiKey
from tests.simulation.client import Fields, Life
from tests.simulation.history import TopicHistory, value_of
from tests.simulation.transaction_history import Transaction
from tests.simulation.transaction_workload import Ended, MustAbort, SilentProducer
from tests.simulation.workloads import E, encode
from tests.simulation.world import MS, S
from tests.support.raw import create_topics_fields, list_offsets_fields, produce_fields

HOUR_MS: Final = 3_600_000
RETENTION_MS: Final = HOUR_MS
TOKEN_MS: Final = 24 * HOUR_MS
TRANSACTION_MS: Final = 60_000
SESSION_MS: Final = 45_000
STEPS_MS: Final = (1_000, 20_000, 50_000, 120_000, HOUR_MS - 1_000, HOUR_MS + 1_000, 25 * HOUR_MS, 72 * HOUR_MS)
# Settings that are times in ms have 32 bits, and no transactional or producer id may expire.
LEAD_MS_MAX: Final = 20 * 24 * HOUR_MS
_EXPIRED_NS: Final = 200 * MS
_EXPIRED_AFTER_FAULTS_NS: Final = 15 * S
_OWN_VERSION: Final = 0
_GONE: Final = (E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND)


class _OwnKey(int):
    """The key of kproc's own operations, with a name for messages."""

    name = "an own operation"


_OWN: Final[Any] = _OwnKey(STATUS_KEY)


class Jumper(SilentProducer):
    """Moves time. Nobody else writes to its topic, and nobody else has its group."""

    timeout_ms = TRANSACTION_MS
    dies = 0.0

    def __init__(self, *arguments: Any, is_calm: bool) -> None:
        self.is_calm = is_calm  # No role dies, pauses or moves partitions.
        self.dated: TopicHistory | None = None
        self.newest_ms = 0  # Date of the last record.
        self.has_lost_record = False  # One had no answer, and may be written at any time.
        self.date_ms = 0  # That the broker told last.
        self.member_epoch = 0
        self.joins = 0
        self.heard_ns = (0, 0)  # The broker's time before and after the last heartbeat.
        self.token: Fields | None = None
        super().__init__(*arguments, is_new=True)

    def encode(self, key: ApiKey, version: int, number: int, fields: Fields) -> bytes:
        """Encode own operations as JSON."""
        if key == _OWN:
            return encode_operation(number, self.name, **fields)
        return super().encode(key, version, number, fields)

    def decode(self, key: ApiKey, version: int, frame: bytes) -> tuple[int, Fields]:
        """Decode own operations from JSON. An error replaces the result."""
        if key == _OWN:
            try:
                return int.from_bytes(frame[:4], "big"), decode_result(frame[4:], "the broker")
            except ClientError as error:
                return int.from_bytes(frame[:4], "big"), {"error": str(error)}
        return super().decode(key, version, frame)

    # -- a round -----------------------------------------------------------------------------------------------

    def work(self) -> Life:
        if self.dated is None:
            yield from self.make_dated()
        else:
            yield from super().work()

    def on_lost(self) -> None:
        """Begin anew, because the open transaction must not become a part of the next one."""
        self.identity = None

    def finish(self) -> Life:
        """Let the reader judge the topic, too."""
        if self.dated is not None:
            self.history.created(self.dated)
        yield from super().finish()

    def run_one(self) -> Life:
        """One jump of time."""
        assert self.dated is not None
        transaction = self.new_transaction()
        since_ns = self.world.broker_ns()
        try:
            yield from self.fill(transaction)
        except MustAbort:
            raise Ended("not now") from None
        until_ns = self.world.broker_ns()
        yield from self.heartbeat()
        yield from self.write(self.dated)
        if self.world.sasl_port:
            yield from self.create_token()
        moved_ns = yield from self.jump()
        yield from self.judge_records(self.dated)
        yield from self.judge_member(moved_ns)
        if self.token is not None:
            yield from self.judge_token(self.token)
        yield from self.judge_transaction(transaction, since_ns, moved_ns - until_ns)

    def jump(self) -> Life:
        """Advance the broker's time; return the time when it was sent, plus the step."""
        steps = [each for each in STEPS_MS if self.date_ms - self.world.clock.wall_ms() + each < LEAD_MS_MAX]
        step_ms = self.rng.choice(steps)
        moved_ns = self.world.broker_ns() + step_ms * MS
        self.world.disturb()  # Idle connections and sessions of logins end.
        self.world.tell(self.name, f"advances time by {step_ms} ms")
        move = {"op": "move-time", "arguments": {"action": "advance", "ms": step_ms}}
        answer = yield from self.call(_OWN, _OWN_VERSION, move)
        if "error" in answer:
            if self.is_calm:
                self.world.violate(f"{self.name}: time is not moved: {answer}")
            raise Ended("time is not moved")
        if answer["now_ms"] < self.date_ms + step_ms:
            self.world.violate(f"{self.name}: time went from {self.date_ms} by {step_ms} to {answer['now_ms']}")
        self.date_ms = answer["now_ms"]
        self.history.counts["jumps"] += 1
        return moved_ns

    def expires(self) -> int:
        """Return when the last of what is too old must be gone."""
        return self.world.now_ns() + (_EXPIRED_NS if self.is_calm else _EXPIRED_AFTER_FAULTS_NS)

    # -- retention ---------------------------------------------------------------------------------------------

    def make_dated(self) -> Life:
        """Create the topic whose records get the broker's date. An answer that got lost is found by a new name."""
        self.number += 1
        configs = {"message.timestamp.type": "LogAppendTime", "retention.ms": str(RETENTION_MS)}
        name = f"{self.name}-{self.number}"
        answer = yield from self.call(
            ApiKey.CREATE_TOPICS, 7, create_topics_fields(name, partitions=1, configs=configs)
        )
        row = answer["topics"][0]
        self.check_code("CreateTopics", row["error_code"], E.THROTTLING_QUOTA_EXCEEDED)
        if row["error_code"]:
            yield from self.pause(10)
            return
        self.dated = TopicHistory(name, row["topic_id"], 1, is_compacted=False, retention_ms=RETENTION_MS)

    def write(self, topic: TopicHistory) -> Life:
        """Write some records, whose date must not go back."""
        for _ in range(self.rng.choice((1, 2, 4))):
            self.number += 1
            value = value_of(topic.topic_id, 0, f"dated.{self.connections}", self.number, 0)
            fields = produce_fields([("", topic.topic_id, [(0, encode([value], 0))])])
            had_lost, self.has_lost_record = self.has_lost_record, True
            answer = yield from self.call(ApiKey.PRODUCE, 13, fields)
            row = answer["responses"][0]["partition_responses"][0]
            self.check_code("Produce", row["error_code"])
            if row["error_code"]:
                raise Ended("its topic is not there now")
            self.has_lost_record = had_lost
            date_ms, offset = row["log_append_time"], row["base_offset"]
            if date_ms < max(self.newest_ms, self.date_ms):
                self.world.violate(f"{self.name}: offset {offset} has the date {date_ms}, after {self.date_ms}")
            self.newest_ms = self.date_ms = date_ms
            self.history.of(topic.topic_id, 0).dates[offset] = date_ms
            losses = self.history.power_losses
            self.history.acknowledge(topic.topic_id, 0, offset, [value], is_durable=True, losses=losses)

    def judge_records(self, topic: TopicHistory) -> Life:
        """Compare the start of the log with the dates of its records."""
        until_ns = self.expires()
        while True:
            start = yield from self.find(topic, -2)
            end = yield from self.find(topic, -1)
            self.history.judge_retention(topic, 0, start, self.world.date_ms())
            if self.newest_ms + RETENTION_MS >= self.date_ms or start == end or self.has_lost_record:
                break
            if self.world.now_ns() > until_ns:
                self.world.violate(f"{self.name}: {topic.name} starts at {start} and ends at {end}, all is too old")
                break
            yield from self.pause(1)
        self.history.counts["retained"] += start < end
        self.history.counts["expired"] += start == end

    def find(self, topic: TopicHistory, timestamp: int) -> Life:
        """Return an offset of the dated topic."""
        while True:
            answer = yield from self.call(
                ApiKey.LIST_OFFSETS, 9, list_offsets_fields(topic.name, [(0, timestamp)])
            )
            row = answer["topics"][0]["partitions"][0]
            if not row["error_code"]:
                return row["offset"]
            self.check_code("ListOffsets", row["error_code"])
            yield from self.pause(5)

    # -- sessions, transactions, tokens ------------------------------------------------------------------------

    def heartbeat(self) -> Life:
        """Join the group, or stay in it; return the error code."""
        if not self.member_epoch:
            self.joins += 1
        fields = {
            "group_id": f"silent-{self.name}", "member_id": f"{self.joins}", "member_epoch": self.member_epoch,
            "rebalance_timeout": 60_000, "subscribed_topic_names": [], "topic_partitions": [],
        }  # fmt: skip
        sent_ns, self.member_epoch = self.world.broker_ns(), 0
        answer = yield from self.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)
        self.check_code("ConsumerGroupHeartbeat", answer["error_code"], *_GONE)
        if not answer["error_code"]:
            self.member_epoch = answer["member_epoch"]
            self.heard_ns = sent_ns, self.world.broker_ns()
        return answer["error_code"]

    def judge_member(self, moved_ns: int) -> Life:
        """Look whether the silent member is still in its group."""
        if not self.member_epoch:
            return
        first_ns, last_ns = self.heard_ns
        until_ns = self.expires()
        code = E.NONE
        while not code and self.world.now_ns() < until_ns:
            is_over = moved_ns - last_ns >= SESSION_MS * MS
            epoch = self.member_epoch
            code = yield from self.heartbeat()
            self.member_epoch = self.member_epoch or (0 if code in _GONE else epoch)
            if code in _GONE and self.world.broker_ns() - first_ns < SESSION_MS * MS:
                self.world.violate(f"{self.name}: a member was removed before its session was over")
            if not is_over or not self.is_calm:
                break  # A coordinator that was loaded meanwhile has begun all sessions anew.
            if not code:
                self.world.violate(f"{self.name}: a member is in its group after the end of its session")
                break
        self.history.counts["silent"] += code in _GONE

    def judge_transaction(self, transaction: Transaction, since_ns: int, age_ns: int) -> Life:
        """Look whether the open transaction was aborted. It is ended if it was not."""
        if len(transaction.offsets) < len(transaction.values) or not transaction.values:
            raise Ended("its transaction was not written")
        until_ns = self.expires()
        while True:
            row = yield from self.describe()
            state = row["transaction_state"]
            is_young = self.world.broker_ns() - since_ns < TRANSACTION_MS * MS
            if state != "Ongoing" and is_young and (row["producer_id"], row["producer_epoch"]) != self.identity:
                self.world.violate(f"{self.name}: {state} before the timeout of its transaction")
            if age_ns < TRANSACTION_MS * MS:
                yield from self.end(transaction, commits=self.rng.random() < 0.5)
                return
            if state == "CompleteAbort":
                self.history.transactions.counts["timed out"] += 1
                raise Ended("its timeout has passed")
            if self.world.now_ns() > until_ns:
                self.world.violate(f"{self.name}: {state} after the timeout of its transaction")
                raise Ended("it is not aborted")
            yield from self.pause(1)

    def create_token(self) -> Life:
        """Create a token, unless there is one."""
        if self.token is not None:
            return
        created = {"renewers": [], "max_lifetime": -1, "owner_principal_type": None, "owner_principal_name": None}
        answer = yield from self.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, created)
        self.check_code("CreateDelegationToken", answer["error_code"])
        if not answer["error_code"]:
            self.token = answer

    def judge_token(self, token: Fields) -> Life:
        """Look whether the token is still described."""
        until_ns = self.expires()
        while True:
            answer = yield from self.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})
            self.check_code("DescribeDelegationToken", answer["error_code"])
            is_there = any(each["token_id"] == token["token_id"] for each in answer["tokens"])
            is_over = self.date_ms > token["expiry_timestamp"]
            if is_there and is_over and self.world.now_ns() < until_ns and not answer["error_code"]:
                yield from self.pause(1)
                continue
            break
        if answer["error_code"]:
            return
        if is_there and is_over:
            self.world.violate(f"{self.name}: a token is there after its expiry")
        if not is_there and self.world.date_ms() < token["expiry_timestamp"]:
            self.world.violate(f"{self.name}: a token is gone before its expiry")
        if not is_there:
            self.history.counts["expired tokens"] += 1
            self.token = None
