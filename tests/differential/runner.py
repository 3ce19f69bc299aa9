"""Sends a sequence to both brokers in step and compares every answer."""

from __future__ import annotations

import itertools
import re
import select
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.differential.compare import ITEMS, ORDER, Difference, Texts, cause_of, compare
from tests.differential.protocol import KEYS
from tests.differential.rules import Case, cannot_be_read, rule_for
from tests.differential.side import Side, new_prefix, now_ms
from tests.differential.steps import Found, Step

_BEFORE_NOW_MS = 1_800_000
# From a difference in one of these on the brokers' states may differ,
_STATE_FIELDS = {
    "error_code", "base_offset", "generation_id", "session_id", "member_id", "leader", "protocol_name",
    "low_watermark",
}  # fmt: skip
# but not after these.
_READS = {
    "list_offsets", "offset_for_leader_epoch", "describe_producers", "describe_configs", "describe_topic_partitions",
    "offset_fetch", "find_coordinator",
}  # fmt: skip
_ASKING = ("describe_", "list_", "find_", "api_", "update_features", "init_producer_id", "metadata")
# What these change reaches all parts of a broker a moment after their answer.
_SETTLING = {
    "create_topics", "create_partitions", "delete_topics", "alter_configs", "incremental_alter_configs",
    "alter_client_quotas", "metadata",
}  # fmt: skip
_SETTLE_SECONDS = 5.0
_ANSWER_SECONDS, _SECOND_ANSWER_SECONDS = 6.0, 4.0
# Connections of requests that wait are passed over by this many.
_CONNECTIONS = 10


class Pace(NamedTuple):
    """Seconds given to the brokers: after a change, for acks=0, before an answer is taken to wait, between requests."""

    settle: float
    unanswered: float
    waiting: float
    between: float


FAST = Pace(0.01, 0.03, 0.2, 0.01)
SLOW = Pace(0.35, 0.3, 0.8, 0.2)


@dataclass
class Notes:
    """What is told beside the differences."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    ruled: Counter[str] = field(default_factory=Counter)
    texts: Counter[tuple[str, Texts]] = field(default_factory=Counter)
    orders: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Notes) -> None:
        self.requests += other.requests
        self.ruled += other.ruled
        self.texts += other.texts
        self.orders += other.orders


Pair = tuple[str, str]


def run(pair: Pair, steps: Sequence[Step], pace: Pace = FAST, notes: Notes | None = None) -> list[Found]:
    """The differences that a sequence shows; it ends where the brokers' states part."""
    one = _Run(pair, pace, notes or Notes())
    try:
        return one.go(steps)
    finally:
        one.close(steps)


def topic_names(steps: Sequence[Step]) -> list[str]:
    """Every topic that a sequence may make, as its script names it."""
    named = (
        topic.get("name")
        for step in steps
        if step.api in ("create_topics", "metadata")
        for topic in step.body["topics"] or ()
    )
    return sorted({name for name in named if name and name[0] == "~"})


class _Run:
    """One run of one sequence, under a prefix of its own."""

    def __init__(self, pair: Pair, pace: Pace, notes: Notes) -> None:
        prefix, began = new_prefix(), now_ms() - _BEFORE_NOW_MS
        self._sides = [Side(bootstrap, prefix, began) for bootstrap in pair]
        self._pace = pace
        self._notes = notes
        self._found: list[Found] = []
        self._settled = 0
        self._waiting: dict[int, tuple[int, Step]] = {}  # By connection.

    def close(self, steps: Sequence[Step]) -> None:
        """Delete what was made."""
        if self._settled:
            for side in self._sides:
                side.remove_barrier()
        if names := topic_names(steps):
            for side in self._sides:
                side.send("own", "delete_topics", 5, {"topic_names": names, "timeout": 30000})
            for side in self._sides:
                side.ask("metadata", 12, {"topics": [], "allow_auto_topic_creation": False})
        for side in self._sides:
            side.close()

    def go(self, steps: Sequence[Step]) -> list[Found]:
        for at, step in enumerate(steps):
            self._notes.requests[step.api, step.version] += 1
            if self._do(at, step, steps[: at + 1]):
                break
        return self._found

    def _do(self, at: int, step: Step, so_far: Sequence[Step]) -> bool:
        """Send one and judge what has come. True: the states may differ from now on."""
        connection = next(
            number for number in itertools.count(step.connection, _CONNECTIONS) if number not in self._waiting
        )
        for side in self._sides:
            side.send(connection, step.api, step.version, step.body)
        if step.is_unanswered:
            _give(self._pace.unanswered)
            answers = [side.take(connection, step.api, step.version) for side in self._sides]
        else:
            taken = self._await(connection, step, self._pace.waiting if step.may_wait else 0, _ANSWER_SECONDS)
            if taken is None:
                self._waiting[connection] = at, step
                return False
            answers = taken
        if self._judge(at, step, answers):
            return True
        if step.api in _SETTLING:
            self._settle(so_far)
        return self._judge_waiting()

    def _judge_waiting(self) -> bool:
        if self._waiting:
            _give(self._pace.between)
        is_over = False
        for connection, (at, step) in list(self._waiting.items()):
            if any(side.has_answer(connection) for side in self._sides):
                del self._waiting[connection]
                answers = self._await(connection, step, 0, _SECOND_ANSWER_SECONDS)
                assert answers is not None
                is_over |= self._judge(at, step, answers)
        return is_over

    def _await(self, connection: int, step: Step, may_wait: float, most: float) -> list[Any] | None:
        """Both answers; None when neither has come and the request may wait."""
        answers: list[Any] = [None, None]
        began = time.monotonic()
        while None in answers:
            for number, side in enumerate(self._sides):
                if answers[number] is None:
                    answers[number] = side.take(connection, step.api, step.version)
            gone = time.monotonic() - began
            if may_wait and answers == [None, None] and gone > may_wait:
                return None
            if None not in answers:
                break
            if gone > (most if answers == [None, None] else _SECOND_ANSWER_SECONDS):
                for side in self._sides:
                    side.drop(connection)
                return ["no answer" if answer is None else answer for answer in answers]
            open_ends = [
                found
                for side, answer in zip(self._sides, answers, strict=True)
                if answer is None and (found := side.descriptor(connection)) is not None
            ]
            select.select(open_ends, [], [], 0.01)
        return answers

    def _settle(self, so_far: Sequence[Step]) -> None:
        """Until both know the same topics, and all their parts what was changed."""
        body = {
            "topics": [{"name": name} for name in topic_names(so_far)],
            "allow_auto_topic_creation": False,
        }
        end = time.monotonic() + _SETTLE_SECONDS
        while len({self._shape(side, body) for side in self._sides}) > 1 and time.monotonic() < end:
            _give(0.005)
        for _ in range(2):
            self._settled += 1
            for side in self._sides:
                side.pass_barrier(self._settled)
        _give(self._pace.settle)

    def _shape(self, side: Side, body: dict[str, Any]) -> tuple[tuple[str, int], ...]:
        topics = side.ask("metadata", 12, body)["topics"]
        return tuple(sorted((topic["name"], len(topic["partitions"])) for topic in topics))

    def _judge(self, at: int, step: Step, answers: list[Any]) -> bool:
        """Note how the answers differ. True: the states may differ from now on."""
        for side, answer in zip(self._sides, answers, strict=True):
            side.learn(step.learning, answer)
        kproc, kafka = (
            side.canonical(answer, KEYS[step.api]) for side, answer in zip(self._sides, answers, strict=True)
        )
        differences, texts = compare(kproc, kafka)
        for words in texts * (step.api != "describe_configs"):  # What settings do is said in our own words.
            self._notes.texts[step.api, Texts(*(re.sub(r"-?\d+", "N", each)[:160] for each in words))] += 1
        real = [each for each in differences if self._is_real(Case(step, each, kproc, kafka))]
        told: set[tuple[Any, ...]] = set()
        for difference in sorted(real, key=lambda each: each.path[-1:] != ("error_code",)):
            path = difference.path
            if any(path[:length] in told for length in range(len(path))):
                continue  # One difference for each struct, errors first.
            told.add(path[:-1])
            cause = cause_of(step.api, difference)
            if all(each.cause != cause for each in self._found):
                self._found.append(Found(cause, at, path, difference.kproc, difference.kafka, (kproc, kafka)))
        # What a rule lets pass parts the states as well, but for what only asks.
        parting = differences if not step.api.startswith(_ASKING) else real
        return step.api not in _READS and any(_is_of_state(each) for each in parting)

    def _is_real(self, case: Case) -> bool:
        difference = case.difference
        if difference.path[-1:] == (ORDER,):
            self._notes.orders[case.step.api, difference.field] += 1
            return False
        rule = "(records that this tool cannot read)" if cannot_be_read(difference) else rule_for(case)
        if rule is not None:
            self._notes.ruled[rule] += 1
        return rule is None


def _give(seconds: float) -> None:
    """Time for the brokers' own threads: what they do meanwhile cannot be waited for."""
    select.select([], [], [], seconds)


def _is_of_state(difference: Difference) -> bool:
    path = difference.path
    return not path or path[-1] in _STATE_FIELDS or path[-1] == ITEMS
