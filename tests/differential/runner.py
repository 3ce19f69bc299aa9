"""Sends a sequence to both brokers in step and compares every answer."""

from __future__ import annotations

import itertools
import re
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.differential.compare import (
    ITEMS,
    ORDER,
    Difference,
    Texts,
    cause_of,
    comparable_settings,
    compare,
)
from tests.differential.protocol import KEYS
from tests.differential.rules import Case, rule_for
from tests.differential.side import GUEST, Side, guest_of, new_prefix, now_ms
from tests.differential.steps import DISCONNECT, PAUSE, Found, Step
from tests.differential.symbols import Ref
from tests.differential.upkeep import Upkeep
from tests.support.wait import stretched

_BEFORE_NOW_MS = 1_800_000
# From a difference in one of these on the brokers' states may differ,
_STATE_FIELDS = {
    "error_code", "base_offset", "generation_id", "session_id", "member_id", "leader", "protocol_name",
    "low_watermark", "partition_error_code", "member_epoch", "first_offset", "last_offset", "delivery_count",
}  # fmt: skip
# but not after these.
_READS = {
    "list_offsets", "offset_for_leader_epoch", "describe_producers", "describe_configs", "describe_topic_partitions",
    "offset_fetch", "find_coordinator",
}  # fmt: skip
_ASKING = ("describe_", "list_", "find_", "api_", "update_features", "init_producer_id", "metadata")
# What these change reaches all parts of a broker a moment after their answer; they themselves are served by the
# controller, which knows it at once,
_CHANGES = {
    "create_topics", "create_partitions", "alter_configs", "incremental_alter_configs", "alter_client_quotas",
}  # fmt: skip
# but not these: one names topics by ids that are looked up first, two make topics after their answers.
_ENDS = {"end_txn", "init_producer_id"}  # Of transactions, whose markers are written after the answer.
_LATE_CHANGES = {"delete_topics", "metadata", "streams_group_heartbeat"}
_RULES = {"create_acls", "delete_acls"}  # Kafka's controller asks its own copy of them, which is late, too.
_SETTLE_SECONDS = 60.0
_ANSWER_SECONDS = 60.0
# One broker may never answer what the other has answered (COMPATIBILITY.md), so this time passes in most runs.
_SECOND_ANSWER_SECONDS = 4
# Kafka never answers an AlterConfigs that names a resource twice.
_SILENCE_SECONDS = 0.5
_INVALID_TOPIC = 17
# Until a broker has noticed that a connection was closed.
_DISCONNECT_SECONDS = 0.3


class Pace(NamedTuple):
    """Seconds given to the brokers: after a change, before an answer is taken to wait, between requests."""

    settle: float
    waiting: float
    between: float


FAST = Pace(0, 0.2, 0.01)
SLOW = Pace(0.35, 0.8, 0.2)


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


def run(upkeep: Upkeep, steps: Sequence[Step], pace: Pace = FAST, notes: Notes | None = None) -> list[Found]:
    """The differences that a sequence shows; it ends where the brokers' states part."""
    has_guest = any(step.connection == GUEST.not_for for step in steps)
    one = _Run(upkeep, pace, notes or Notes(), has_guest=has_guest)
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
    return sorted({name for name in (*named, *_internal_names(steps)) if name and name[0] == "~"})


def _internal_names(steps: Sequence[Step]) -> Iterator[str]:
    """Yield the names of topics that a broker may create for a streams group."""
    for step in steps:
        topology = step.body.get("topology") if step.api == "streams_group_heartbeat" else None
        if isinstance(topology, Ref):
            topology = topology.other
        for each in () if topology is None else topology["subtopologies"]:
            yield from (row["name"] for row in each["state_changelog_topics"])
            yield from (row["name"] for row in each["repartition_source_topics"])


def group_names(steps: Sequence[Step]) -> list[str]:
    """Every group that a sequence may make."""
    named = (str(step.body.get("group_id", "")) for step in steps)
    return sorted({name for name in named if name[:1] == "~"})


class _Run:
    """One run of one sequence, under a prefix of its own."""

    def __init__(self, upkeep: Upkeep, pace: Pace, notes: Notes, *, has_guest: bool) -> None:
        self._prefix = new_prefix()
        began = now_ms() - _BEFORE_NOW_MS
        self._upkeep = upkeep
        guest = guest_of(self._prefix) if has_guest else ""
        self._sides = [Side(bootstrap, self._prefix, began, guest) for bootstrap in upkeep.pair]
        self._pace = pace
        self._notes = notes
        self._found: list[Found] = []
        self._is_settled = True
        self._has_new_rules = False
        self._ending: set[str] = set()  # Transactional ids.
        self._waiting: dict[int, tuple[int, Step]] = {}  # By connection.
        self._steps: Sequence[Step] = ()

    def close(self, steps: Sequence[Step]) -> None:
        """What was made may be deleted."""
        for side in self._sides:
            side.close()
        names = (
            [name.replace("~", self._prefix) for name in each(steps)] for each in (topic_names, group_names)
        )
        self._upkeep.discard(*names)

    def go(self, steps: Sequence[Step]) -> list[Found]:
        self._steps = steps
        for at, step in enumerate(steps):
            self._notes.requests[step.api, step.version] += 1
            if self._do(at, step, steps[: at + 1]):
                break
        return self._found

    def _do(self, at: int, step: Step, so_far: Sequence[Step]) -> bool:
        """Send one and judge what has come. True: the states may differ from now on."""
        if not self._is_settled and (step.api not in _CHANGES or self._has_new_rules):
            self._settle(so_far)
        self._await_markers()
        connection = next(
            number for number in itertools.count(step.connection, GUEST.every) if number not in self._waiting
        )
        if step.api == DISCONNECT:
            for side in self._sides:
                side.drop(connection)
            _give(_DISCONNECT_SECONDS)
            return False
        if step.api == PAUSE:
            _give(step.body["ms"] / 1000 + self._pace.between)
            return False
        for side in self._sides:
            side.send(connection, step.api, step.version, step.body)
        if step.is_unanswered:
            answers = self._await_unanswered(connection)
        else:
            taken = self._await(connection, step, self._pace.waiting if step.may_wait else 0, _ANSWER_SECONDS)
            if taken is None:
                self._waiting[connection] = at, step
                return False
            answers = taken
        if step.api in _ENDS and step.body["transactional_id"]:
            self._ending.add(step.body["transactional_id"])
        if self._judge(at, step, answers):
            return True
        if step.api in _CHANGES | _LATE_CHANGES | _RULES and _may_have_changed(step, answers):
            self._is_settled = False
            self._has_new_rules |= step.api in _RULES
        return self._judge_waiting()

    def _await_unanswered(self, connection: int) -> list[Any]:
        """None or "closed": a request behind one with acks=0 is answered when that one is done, or not at all."""
        probe = Step(connection, "api_versions", 0, {})
        for side in self._sides:
            side.send(connection, probe.api, probe.version, probe.body)
        answers = self._await(connection, probe, 0, _ANSWER_SECONDS)
        assert answers is not None
        return [None if isinstance(answer, dict) else answer for answer in answers]

    def _judge_waiting(self) -> bool:
        if self._waiting:
            _give(self._pace.between)
        is_over = False
        for connection, (at, step) in list(self._waiting.items()):
            if any(side.has_answer(connection) for side in self._sides):
                del self._waiting[connection]
                answers = self._await(connection, step, 0, stretched(_SECOND_ANSWER_SECONDS))
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
            if gone > (most if answers == [None, None] else _second_answer_seconds(step)):
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
        self._upkeep.pass_barrier()
        _give(self._pace.settle)
        self._is_settled = True
        self._has_new_rules = False

    def _await_markers(self) -> None:
        """Until no transaction is being ended."""
        body = {"transactional_ids": sorted(self._ending)}
        self._ending.clear()
        end = time.monotonic() + _SETTLE_SECONDS
        for side in self._sides * bool(body["transactional_ids"]):
            while time.monotonic() < end:
                rows = side.ask("describe_transactions", 0, side.real(body))["transaction_states"]
                if not any(row["transaction_state"].startswith("Prepare") for row in rows):
                    break
                _give(0.005)

    def _shape(self, side: Side, body: dict[str, Any]) -> tuple[tuple[str, int], ...]:
        topics = side.ask("metadata", 12, body)["topics"]
        for topic in topics:  # One that was made by a Metadata has its id in the answer of one broker only.
            side.learn_id(topic)
        return tuple(sorted((topic["name"], len(topic["partitions"])) for topic in topics))

    def _judge(self, at: int, step: Step, answers: list[Any]) -> bool:
        """Note how the answers differ. True: the states may differ from now on."""
        self._learn(step, answers)
        canonical = (
            side.canonical(answer, KEYS[step.api]) for side, answer in zip(self._sides, answers, strict=True)
        )
        kproc, kafka = comparable_settings(*canonical)
        differences, texts = compare(kproc, kafka)
        for words in texts * (step.api != "describe_configs"):  # What settings do is said in our own words.
            self._notes.texts[step.api, Texts(*(re.sub(r"-?\d+", "N", each)[:160] for each in words))] += 1
        before = self._steps[:at]
        real = without_ruled(differences, lambda each: Case(step, each, kproc, kafka, before), self._notes)
        told: set[tuple[Any, ...]] = set()
        for difference in sorted(real, key=_errors_first):
            path = difference.path
            if any(path[:length] in told for length in range(len(path))):
                continue  # One difference for each struct, errors first.
            told.add(path[:-1])
            cause = cause_of(step.api, difference)
            if all(each.cause != cause for each in self._found):
                self._found.append(Found(cause, at, path, difference.kproc, difference.kafka, (kproc, kafka)))
        if step.is_unanswered and "closed" in answers:
            return True  # Which of its partitions were stored is not told.
        # What a rule lets pass parts the states as well, but for what only asks. A Metadata may make topics.
        has_made_fewer = step.api == "metadata" and any(each.kproc == _INVALID_TOPIC for each in differences)
        parting = differences if has_made_fewer or not step.api.startswith(_ASKING) else real
        return step.api not in _READS and any(_is_of_state(each) for each in parting)

    def _learn(self, step: Step, answers: list[Any]) -> None:
        """What both chose: the same names must not mean what only one of them has."""
        if not all(isinstance(answer, dict) for answer in answers):
            return
        learning = {
            key: field
            for key, field in step.learning.items()
            if all(answer.get(field) not in (None, "", -1) for answer in answers)
        }
        if step.api == "init_producer_id" and any(answer["error_code"] for answer in answers):
            return
        for side, answer in zip(self._sides, answers, strict=True):
            side.learn(learning, answer)


def without_ruled(
    differences: list[Difference], case_of: Callable[[Difference], Case], notes: Notes
) -> list[Difference]:
    """What no rule lets pass. A rule for an error speaks for all that stands beside it and below."""
    real: list[Difference] = []
    ruled: set[tuple[Any, ...]] = set()
    for difference in sorted(differences, key=_errors_first):
        path, case = difference.path, case_of(difference)
        if path[-1:] == (ORDER,):
            notes.orders[case.step.api, difference.field] += 1
            continue
        if any(path[:length] in ruled for length in range(len(path))):
            continue
        rule = rule_for(case)
        if rule is None:
            real.append(difference)
            continue
        notes.ruled[f"{rule} ({case.step.api})"] += 1
        if path[-1:] == ("error_code",):
            ruled.add(path[:-1])
    return real


def _errors_first(difference: Difference) -> bool:
    return difference.path[-1:] != ("error_code",)


def _may_have_changed(step: Step, answers: list[Any]) -> bool:
    if step.api == "metadata":
        return bool(step.body["allow_auto_topic_creation"])
    return not step.body.get("validate_only") and any(_has_success(answer) for answer in answers)


def _has_success(answer: Any) -> bool:
    if isinstance(answer, dict):
        return answer.get("error_code") == 0 or any(map(_has_success, answer.values()))
    return any(map(_has_success, answer)) if isinstance(answer, list) else answer in ("closed", "no answer")


def _second_answer_seconds(step: Step) -> float:
    if step.api == "alter_configs":
        names = [(row["resource_type"], row["resource_name"]) for row in step.body["resources"]]
        if len(set(names)) < len(names):
            return _SILENCE_SECONDS
    # One broker may have records of a ShareFetch at once, and the other one none until its wait ends.
    waiting_ms: int = step.body["max_wait"] if step.api == "share_fetch" else 0
    return stretched(_SECOND_ANSWER_SECONDS) + waiting_ms / 1000


def _give(seconds: float) -> None:
    """Time for the brokers' own threads: what they do meanwhile cannot be waited for."""
    select.select([], [], [], seconds)


def _is_of_state(difference: Difference) -> bool:
    path = difference.path
    return not path or path[-1] in _STATE_FIELDS or path[-1] == ITEMS
