"""Differences that are meant. The name of each is the area of a line in kproc/COMPATIBILITY.md, section 2.

tests/tidy/test_compatibility.py holds that.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.differential.compare import ITEMS, Difference
from tests.differential.logins import FIRST, ScramFinal, ScramFirst, listener_of
from tests.differential.steps import Step
from tests.differential.symbols import Moment, Ref, Words

_BROKER, _BROKER_LOGGER = 4, 8
_UNKNOWN_TOPIC, _NO_LEADER, _INVALID_TOPIC, _INVALID_CONFIG = 3, 5, 17, 40
_NO_GROUP, _NO_TRANSACTION, _NOT_COORDINATOR = 69, 105, 16
_ILLEGAL_GENERATION, _UNKNOWN_MEMBER = 22, 25
_OUT_OF_ORDER = 45
_FENCED_MEMBER_EPOCH = 110
_UNRELEASED_INSTANCE = 111
_INVALID_EXPRESSION = 128
_INCONSISTENT_PROTOCOL = 23
_MEMBER_IDS_SINCE = 4  # The version of JoinGroup from which on a client needs a member id to join.
_SHUTDOWN = 4  # The code of a status of a streams group.
_LEAVES = -1  # The member epoch of a heartbeat.
_NO_MECHANISM, _ILLEGAL_SASL_STATE, _LOGIN_FAILED = 33, 34, 58
_INVALID_REQUEST = 42
_INVALID_RECORD_STATE = 121
_OF_SHARES = ("share_fetch", "share_acknowledge")
_RECORD_LIMIT = 1  # The mode of a ShareFetch that can acquire a part of a batch.
_THROTTLED_FROM = 3  # The first delivery for which a record can be set apart from others.
_REFUSALS = (29, 30, 31, 53)  # Of topics, groups, the cluster, transactional ids.
_TRANSACTIONAL = 16
_LISTS = ("topics", "topic_data", "entries", "transactions", "v3_and_below_topics", "markers")
_ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")
_LATEST_TIMESTAMP, _NO_TIMESTAMP, _END = -3, -1, -1
_READ_COMMITTED = 1


class Case(NamedTuple):
    """A difference with what it was found in: the request, both answers, and the steps before it."""

    step: Step
    difference: Difference
    kproc: Any
    kafka: Any
    before: Sequence[Step] = ()

    @property
    def is_error(self) -> bool:
        return self.difference.path[-1:] == ("error_code",)

    @property
    def has_answers(self) -> bool:
        """True if both brokers have answered and kept the connection."""
        return isinstance(self.kproc, dict) and isinstance(self.kafka, dict)

    @property
    def codes(self) -> tuple[Any, Any]:
        """Both error codes; None where the difference is another one."""
        return (self.difference.kproc, self.difference.kafka) if self.is_error else (None, None)

    def is_of(self, resource_type: int) -> bool:
        """It lies in the row of such a resource."""
        return any(row.get("resource_type") == resource_type for row in self.difference.rows)

    def topic_asked(self) -> dict[str, Any]:
        """What the request says of the topic in whose row the difference lies."""
        name = next((row["name"] for row in self.difference.rows if "name" in row), None)
        return next((row for row in self.step.body["topics"] if row["name"] == name), {})


def _transactions(case: Case) -> bool:
    if case.step.api == "describe_producers":
        return case.difference.path[-1:] == ("last_timestamp",) and _is_late_or_early(case)
    if case.step.api == "produce":
        # Kafka remembers the sequence of a batch that it refused for its ids or its epoch. It also compares a sequence
        # that waited for a transaction with batches outside of transactions.
        is_outside = _is_outside_of_transactions(case.step)
        return case.codes == (0, _OUT_OF_ORDER) and (is_outside or _has_refused_producer(case.before))
    # Before the first one, Kafka has nobody who would know.
    return case.step.api == "describe_transactions" and case.codes == (_NO_TRANSACTION, _NOT_COORDINATOR)


def _is_late_or_early(case: Case) -> bool:
    """Return True if the time is that of a marker of coordinator epoch -1, or of a batch behind a marker.

    kproc ignores such a marker, and dates such a batch by its arrival.
    """
    row = ChainMap(*case.difference.rows)
    is_dated_by_arrival = case.difference.kproc == "NOW" and row.get("current_txn_start_offset") == -1
    return row.get("coordinator_epoch") == -1 or (
        is_dated_by_arrival
        and any(step.api == "produce" and _is_outside_of_transactions(step) for step in case.before)
    )


def _is_outside_of_transactions(step: Step) -> bool:
    return any(not batch.get("attributes", 0) & _TRANSACTIONAL for batch in _batches_of(step.body))


def _has_refused_producer(steps: Sequence[Step]) -> bool:
    """Return True if a Produce has named a transactional id that does not have that producer id or epoch."""
    named = [(step.api, step.body.get("transactional_id"), step.body) for step in steps]
    begun = {name for api, name, _ in named if api == "init_producer_id"}
    return any(
        name not in begun or getattr(batch.get("pid"), "name", None) != name or not _has_own_epoch(batch)
        for api, name, body in named
        if api == "produce" and name is not None
        for batch in _batches_of(body)
    )


def _has_own_epoch(batch: Any) -> bool:
    epoch = batch.get("epoch")
    return isinstance(epoch, Ref) and not epoch.add


def _authorisation(case: Case) -> bool:
    if case.step.api == "describe_user_scram_credentials" and case.step.body["users"] is None:
        return bool(case.difference.kafka == "no answer")
    return case.codes[0] in _REFUSALS and case.codes[1] in (_INVALID_REQUEST, _INVALID_CONFIG)


def _auto_creation(case: Case) -> bool:
    return (
        case.step.api == "metadata"
        and bool(case.step.body["allow_auto_topic_creation"])
        and case.codes in ((0, _UNKNOWN_TOPIC), (0, _NO_LEADER), (_INVALID_TOPIC, _UNKNOWN_TOPIC))
    )


def _features(case: Case) -> bool:
    of_features = ("api_keys", "supported_features", "finalized_features")
    if case.step.api == "api_versions":
        return bool(case.difference.path) and case.difference.path[0] in of_features
    return case.step.api == "update_features"


def _broker_settings(case: Case) -> bool:
    if case.step.api == "describe_configs":
        return "configs" in case.difference.path and case.is_of(_BROKER)
    # Both may refuse, in an order of their own; what Kafka alone refuses is no setting that kproc does not honour.
    return "alter_configs" in case.step.api and bool(case.codes[0]) and case.is_of(_BROKER)


def _broker_loggers(case: Case) -> bool:
    """Each has its own loggers, but for the root, and starts with its own level of the root.

    The sequences only validate changes of loggers.
    """
    if case.step.api != "describe_configs" or not case.is_of(_BROKER_LOGGER):
        return False
    return case.difference.path[-2:] == ("configs", ITEMS) or case.difference.path[-1:] == ("value",)


def _of_fetch(case: Case) -> bool:
    difference = case.difference
    if case.step.api != "fetch":
        return False
    if difference.path[-2:] == ("records", ITEMS):  # Kafka's are of one segment, ours go on in the next.
        kproc, kafka = difference.rows[-1]["records"], _partition_of_kafka(case).get("records") or []
        first = kproc[: len(kafka)]
        return 0 < len(kafka) < len(kproc) and _without_times(first) == _without_times(kafka)
    if difference.path[-2:] == ("aborted_transactions", ITEMS):
        return _aborted_of_other_range(case)
    if difference.path[-1:] == ("last_stable_offset",):  # Kafka's is the first one of a batch that has lost records.
        has_deleted = any(step.api == "delete_records" for step in case.before)
        log_start = difference.rows[-1].get("log_start_offset", difference.kproc)
        return bool(has_deleted and log_start == difference.kproc > difference.kafka)
    is_list = difference.path[-1:] == ("aborted_transactions",)
    return is_list and not (difference.kproc or difference.kafka)


def _aborted_of_other_range(case: Case) -> bool:
    """Lists of aborted transactions that differ because the ranges of records differ.

    Kafka lists those of what it would have read, if it read nothing. Its records are of one segment. Those of kproc go
    on in the next segment, and so does its list.
    """
    kproc, kafka = case.difference.rows[-1], _partition_of_kafka(case)
    count = len(kafka.get("records") or [])
    if not kproc["records"]:
        return not kproc["aborted_transactions"]
    if not 0 < count < len(kproc["records"]):
        return False
    listed = kafka.get("aborted_transactions") or []
    more = [each for each in kproc["aborted_transactions"] if each not in listed]
    first_offset = kproc["records"][count]["base"]
    return len(more) + len(listed) == len(kproc["aborted_transactions"]) and all(
        each["first_offset"] >= first_offset for each in more
    )


def _without_times(batches: list[Any]) -> list[Any]:
    """Batches without the times in their headers, which differ for batches that are compressed anew (_header_kept)."""
    return [{**batch, "base_time": None, "max_time": None} for batch in batches]


def _partition_of_kafka(case: Case) -> dict[str, Any]:
    """Return Kafka's row of the partition in whose row the difference lies. It is empty if Kafka has none."""
    topic, row = case.difference.rows[-2:]
    named = [topic.get("topic"), topic.get("topic_id")]
    for other in case.kafka["responses"]:
        if [other.get("topic"), other.get("topic_id")] == named:
            rows = (each for each in other["partitions"] if each["partition_index"] == row["partition_index"])
            return next(rows, {})
    return {}


def _replaced_group_request(case: Case) -> bool:
    kproc = case.difference.kproc
    return (
        case.step.may_wait
        and case.step.api in ("join_group", "sync_group")
        and case.difference.kafka == "no answer"
        and isinstance(kproc, dict)
        and kproc["error_code"] != 0
    )


def _kafka_fails(case: Case) -> bool:
    step, difference = case.step, case.difference
    if step.api == "describe_topic_partitions":  # A limit or a cursor that it does not expect.
        return not isinstance(difference.kafka, dict) and "'error_code': -1" in repr(case.kafka)
    if step.is_unanswered:
        return bool(difference.kafka == "closed") and _cannot_be_compressed_anew(step.body)
    return bool(case.codes[1] == -1)


def _batches_of(body: dict[str, Any]) -> list[Any]:
    return [
        batch
        for topic in body["topic_data"]
        for row in topic["partition_data"]
        for batch in row["records"] or ()
    ]


def _cannot_be_compressed_anew(body: dict[str, Any]) -> bool:
    """By Kafka: a batch of a producer's id without an epoch, a record that is dated before 1970."""
    batches = _batches_of(body)
    times = [
        batch["time"] + record[2]
        for batch in batches
        if not isinstance(batch["time"], Moment)
        for record in batch["records"]
    ]
    has_no_epoch = any("pid" in batch and batch["epoch"] == -1 for batch in batches)
    return has_no_epoch or min(times, default=0) < _NO_TIMESTAMP


def _kafka_is_silent(case: Case) -> bool:
    if case.step.api != "alter_configs" or case.difference.kafka != "no answer":
        return False
    names = [(row["resource_type"], row["resource_name"]) for row in case.step.body["resources"]]
    return len(set(names)) < len(names)


def _has_a_message(case: Case) -> bool:
    difference = case.difference
    return (
        difference.path[-1:] == ("error_message",)
        and isinstance(difference.kproc, Words)
        and bool(difference.kproc)
        and not difference.kafka
    )


def _eligible_leaders(case: Case) -> bool:
    """The source of min.insync.replicas, that it is a row of the cluster's settings, and has to stay one."""
    difference = case.difference
    if case.step.api == "alter_configs" and case.codes == (0, _INVALID_CONFIG):
        return case.is_of(_BROKER) and difference.rows[-1]["resource_name"] == ""
    return difference.path[-1:] != ("value",) and any(
        row.get("name") == "min.insync.replicas" for row in difference.rows
    )


def _asked_twice(case: Case) -> bool:
    """A partition, or what else is answered row by row, that the request names more than once."""
    if case.difference.path[-1:] != (ITEMS,):
        return False
    return any(_has_twins(case.step.body.get(key)) for key in _LISTS)


def _markers_without_an_answer(case: Case) -> bool:
    is_silent = case.step.api == "write_txn_markers" and case.difference.kafka == "no answer"
    return is_silent and _has_twins(case.step.body["markers"])


def _has_twins(rows: Any) -> bool:
    if not isinstance(rows, list):
        return False
    named = [(str(_name_of(row)), row) for row in rows]
    # Several records can have one type of acknowledgement.
    return len({name for name, _ in named}) < len(rows) or any(
        _has_twins(inner)
        for row in rows
        if isinstance(row, dict)
        for key, inner in row.items()
        if key != "acknowledge_types"
    )


def _name_of(row: Any) -> Any:
    if not isinstance(row, dict):
        return row
    if "entity" in row:
        return sorted({each["entity_type"]: str(each["entity_name"]) for each in row["entity"]}.items())
    keys = ("name", "partition_index", "partition", "index")
    return next((row[key] for key in keys if row.get(key) is not None), row)


def _sizes_on_disk(case: Case) -> bool:
    return case.step.api == "describe_log_dirs" and case.difference.path[-1:] == ("partition_size",)


def _header_kept(case: Case) -> bool:
    """A batch's base timestamp when it is compressed anew, and a largest one that is no time.

    Produce answers with the largest one if the batch is in the log already.
    """
    kproc, kafka = case.difference.kproc, case.difference.kafka
    field = case.step.api, *case.difference.path[-1:]
    if field == ("fetch", "base_time"):
        return True
    is_largest = field in (
        ("fetch", "max_time"), ("describe_producers", "last_timestamp"), ("produce", "log_append_time"),
    )  # fmt: skip
    return is_largest and kafka == _NO_TIMESTAMP and isinstance(kproc, int) and kproc < _NO_TIMESTAMP


def _deleted_records(case: Case) -> bool:
    """Return True if Kafka's ListOffsets has not noticed a DeleteRecords.

    The timestamp -3 can find a deleted record. A time can find no record if Kafka is about to delete the segment. The
    last stable offset can be the first offset of a batch that has lost records.
    """
    difference = case.difference
    if case.step.api != "list_offsets" or difference.path[-1] not in ("timestamp", "offset", "leader_epoch"):
        return False
    index, topic = difference.rows[-1]["partition_index"], case.topic_asked()
    asked = {row["timestamp"] for row in topic.get("partitions", ()) if row["partition_index"] == index}
    if _LATEST_TIMESTAMP in asked:
        return True
    is_by_time = any(isinstance(each, Moment) or each >= 0 for each in asked) and difference.kafka == -1
    is_stable = case.step.body.get("isolation_level") == _READ_COMMITTED and _END in asked
    is_lower = is_stable and difference.path[-1] == "offset" and 0 <= difference.kafka < difference.kproc
    return (is_by_time or is_lower) and _has_deleted_records(case.before, topic, index)


def _has_deleted_records(steps: Sequence[Step], topic: dict[str, Any], index: int) -> bool:
    return any(
        row["partition_index"] == index
        for step in steps
        if step.api == "delete_records"
        for each in step.body["topics"]
        if each["name"] == topic["name"]
        for row in each["partitions"]
    )


def _group_of_a_refused_commit(case: Case) -> bool:
    """Groups that kproc shows, to which somebody who is no member has committed."""
    committed_to = {
        step.body["group_id"]
        for step in case.before
        if step.api in ("offset_commit", "txn_offset_commit")
        and -1 in (step.body.get("generation_id"), step.body.get("generation_id_or_member_epoch"))
    }
    if case.step.api == "list_groups" and case.difference.path == ("groups", ITEMS):
        kproc, kafka = ({row["group_id"] for row in each["groups"]} for each in (case.kproc, case.kafka))
        return kafka < kproc and kproc - kafka <= committed_to
    if case.step.api == "offset_delete":
        return case.step.body["group_id"] in committed_to and case.codes == (0, _NO_GROUP)
    row = case.difference.rows[-1] if case.difference.rows else {}
    if case.step.api not in ("describe_groups", "delete_groups") or row.get("group_id") not in committed_to:
        return False
    return case.difference.kafka == "Dead" or case.codes == (0, _NO_GROUP)


def _group_of_a_refused_join(case: Case) -> bool:
    """Groups that Kafka shows and that never had a member: its client has no protocols, or left before it joined."""
    joined = {
        step.body["group_id"]
        for step in case.before
        if step.api == "join_group" and not (step.body["protocols"] and step.body.get("protocol_type", "consumer"))
    }
    joined |= _groups_left_without_a_member(case.before)
    if case.step.api == "list_groups" and case.difference.path == ("groups", ITEMS):
        kproc, kafka = ({row["group_id"] for row in each["groups"]} for each in (case.kproc, case.kafka))
        return kproc < kafka and kafka - kproc <= joined
    if case.step.api == "offset_delete":
        return case.step.body["group_id"] in joined and case.codes == (_NO_GROUP, 0)
    if case.step.api == "join_group":
        is_unknown = case.codes == (_UNKNOWN_MEMBER, _INCONSISTENT_PROTOCOL)
        return case.step.body["group_id"] in joined and is_unknown
    if case.step.api in ("offset_commit", "txn_offset_commit"):
        is_unknown = case.codes[0] in (_NO_GROUP, _ILLEGAL_GENERATION) and case.codes[1] == _UNKNOWN_MEMBER
        return case.step.body["group_id"] in joined and is_unknown
    row = case.difference.rows[-1] if case.difference.rows else {}
    if case.step.api not in ("describe_groups", "delete_groups") or row.get("group_id") not in joined:
        return False
    return case.difference.kproc == "Dead" or case.codes == (_NO_GROUP, 0)


def _groups_left_without_a_member(steps: Sequence[Step]) -> set[Any]:
    """Return the groups that a client left with the member id that it needs to join, or before a SyncGroup."""
    named: set[Any] = set()
    had_members: set[Any] = set()
    synced: set[Any] = set()
    left: set[Any] = set()
    for step in steps:
        group_id = step.body.get("group_id")
        if step.api == "join_group":
            name = group_id, repr(step.body["member_id"])
            needs_id = step.version >= _MEMBER_IDS_SINCE and step.body["group_instance_id"] is None
            if not needs_id or name in named:
                had_members.add(group_id)
            named.add(name)
        elif step.api == "sync_group":
            synced.add(group_id)
        elif step.api == "leave_group" and group_id not in had_members & synced:
            left.add(group_id)
    return left


def _colliding_names(case: Case) -> bool:
    if case.step.api != "create_topics" or case.codes[0] != _INVALID_TOPIC:
        return False
    keys = [str(topic["name"]).replace(".", "_") for topic in case.step.body["topics"]]
    return keys.count(str(case.difference.rows[-1]["name"]).replace(".", "_")) > 1


def _endpoint_of_the_controller(case: Case) -> bool:
    return case.step.api == "describe_quorum" and "listeners" in case.difference.path


def _as_many_votes(case: Case) -> bool:
    difference = case.difference
    return difference.path == ("protocol_name",) and bool(difference.kproc) and bool(difference.kafka)


def _leader_after_another(case: Case) -> bool:
    """Return True if each broker has chosen another leader after the leader had left.

    Only the leader gets the list of members.
    """
    is_of_leader = case.difference.path[:1] in (("leader",), ("members",))
    if case.step.api != "join_group" or not case.has_answers or not is_of_leader:
        return False
    is_successful = case.kproc["error_code"] == case.kafka["error_code"] == 0
    has_left = any(
        step.api == "leave_group" and step.body["group_id"] == case.step.body["group_id"] for step in case.before
    )
    return is_successful and has_left and case.kproc["leader"] != case.kafka["leader"]


def _logins(case: Case) -> bool:
    step = case.step
    if step.connection < FIRST:
        return False
    token = step.body.get("auth_bytes")
    can_renew = listener_of(step.connection) == "AGAIN"
    told = _code_of(case.kproc)
    if can_renew and case.kafka == "closed" and told in (_NO_MECHANISM, _LOGIN_FAILED) and _is_renewed(case):
        return True  # By another mechanism.
    if can_renew and case.kafka == "closed" and told == _ILLEGAL_SASL_STATE and _changes_mechanism(case):
        return True
    if isinstance(token, (ScramFirst, ScramFinal)) and case.kafka == "closed" and _is_interrupted(case):
        return can_renew and _is_renewed(case)
    if isinstance(token, ScramFirst):
        return not token.names_somebody and case.difference.kafka in (_LOGIN_FAILED, "closed")
    if isinstance(token, ScramFinal):
        if token.wrong in ("short proof", "empty proof"):  # Kafka fails over it.
            return case.kafka == "closed" and told == _LOGIN_FAILED
        # A channel that is bound to something, which is not offered.
        return token.wrong in ("bound", "other channel") and case.codes[1] in (0, None)
    if step.api == "sasl_handshake":
        return can_renew and step.version == 0 and told == _ILLEGAL_SASL_STATE
    if step.api == "sasl_authenticate":  # Nobody has begun a renewal, or at a Handler that is gone.
        return can_renew and case.kproc == "closed" and _code_of(case.kafka) == _ILLEGAL_SASL_STATE
    # Whatever is no part of a login, between its steps: not answered, or, while a session is renewed, as ever.
    is_between = _is_logging_in(case)
    return is_between and (
        case.kproc == "closed"
        or (can_renew and (case.kafka == "closed" or _code_of(case.kafka) == _ILLEGAL_SASL_STATE))
    )


def _code_of(answer: Any) -> Any:
    return answer.get("error_code") if isinstance(answer, dict) else None


def _is_interrupted(case: Case) -> bool:
    """Another request came between the steps of this login."""
    own = [each.api for each in case.before if each.connection == case.step.connection]
    return not own[-1].startswith("sasl_") if own else False


def _is_renewed(case: Case) -> bool:
    """This is not the first login on its connection."""
    steps = [*case.before, case.step]
    return [each.api for each in steps if each.connection == case.step.connection].count("sasl_handshake") > 1


def _changes_mechanism(case: Case) -> bool:
    """The last SaslHandshake before this step has begun a renewal by another mechanism than that of the first login."""
    own = [each for each in case.before if each.connection == case.step.connection]
    mechanisms = [each.body["mechanism"] for each in own if each.api == "sasl_handshake"]
    return len(mechanisms) > 1 and mechanisms[-1] != mechanisms[0]


def _is_logging_in(case: Case) -> bool:
    """The last step of its login was not the last one of all."""
    last = next(
        (
            step
            for step in reversed(case.before)
            if step.connection == case.step.connection and step.api in ("sasl_handshake", "sasl_authenticate")
        ),
        None,
    )
    return last is not None and (
        last.api == "sasl_handshake" or isinstance(last.body["auth_bytes"], ScramFirst)
    )


def _misdated_batch(case: Case) -> bool:
    """The header says that the batch is misdated. It is not decompressed to find the record."""
    return case.step.api == "produce" and case.difference.path[-2:] == ("record_errors", ITEMS)


def _random_producer_ids(case: Case) -> bool:
    """A filter names an id that Kafka gives to its first producers."""
    return case.step.api == "list_transactions" and bool(case.step.body.get("producer_id_filters"))


def _strict_list(case: Case) -> bool:
    """Kafka drops repeated elements and some empty ones. What it finds later may be an error all the same."""
    text = str(case.kproc)
    is_empty = "values must not be empty" in text and case.codes[1] in (0, _UNKNOWN_TOPIC)
    return case.codes[0] == _INVALID_CONFIG and ("must not be duplicated" in text or is_empty)


def _other_partitions(case: Case) -> bool:
    """Other partitions or tasks of a group, and the epochs of members that must give up others."""
    if case.step.api in ("streams_group_heartbeat", "streams_group_describe"):
        return _other_tasks(case)
    fields = {"assignment", "target_assignment"}
    if case.step.api == "consumer_group_heartbeat" and case.difference.path == ("member_epoch",):
        return bool(case.kproc["assignment"] != case.kafka["assignment"])
    if case.step.api in ("consumer_group_heartbeat", "consumer_group_describe"):
        return not fields.isdisjoint(case.difference.path)
    return (
        case.step.api == "sync_group" and case.difference.path == ("assignment",) and _is_of_consumers(case)
    )


def _other_tasks(case: Case) -> bool:
    fields = {"assignment", "target_assignment", *_ROLES}
    if case.difference.path == ("member_epoch",):
        return any(case.kproc[role] != case.kafka[role] for role in _ROLES)
    is_of_endpoints = case.difference.path[:1] == ("partitions_by_user_endpoint",)
    return is_of_endpoints or not fields.isdisjoint(case.difference.path)


def _forgotten_first_heartbeat(case: Case) -> bool:
    """Values of the heartbeat that creates a group, which Kafka forgets.

    Task offsets, a requested shutdown, the version of the endpoints, the numbers of partitions of internal topics.
    """
    difference = case.difference
    if case.step.api == "streams_group_describe":
        is_of_offsets = {"task_offsets", "task_end_offsets"} & set(difference.path)
        is_count = "subtopologies" in difference.path and difference.path[-1:] == ("partitions",)
        has_less = difference.path[-1:] == (ITEMS,) and difference.kproc == "has more"
        return (bool(is_of_offsets) and has_less) or (is_count and difference.kafka == 0)
    is_of_endpoints = difference.path == ("partitions_by_user_endpoint",)
    if difference.path == ("status", ITEMS) and difference.kproc == "has more":
        return any(each["status_code"] == _SHUTDOWN for each in case.kproc["status"])
    return case.step.api == "streams_group_heartbeat" and is_of_endpoints and None in difference[1:3]


def _topology_after_a_rejection(case: Case) -> bool:
    """Numbers of partitions of internal topics that kproc no longer knows, because topics have changed since."""
    is_count = "subtopologies" in case.difference.path and case.difference.path[-1:] == ("partitions",)
    if case.step.api != "streams_group_describe" or not is_count or case.difference.kproc:
        return False
    changes = ("create_topics", "create_partitions", "delete_topics")
    apis = [step.api for step in case.before]
    last = max((at for at, api in enumerate(apis) if api == "streams_group_heartbeat"), default=0)
    return any(api in changes for api in apis[:last])


def _shutdown_without_members(case: Case) -> bool:
    """Kafka shows the shutdown that a member has requested with its leave, and kproc does not."""
    if case.step.api != "streams_group_heartbeat" or case.difference.path != ("status", ITEMS):
        return False
    own, others = ([each["status_code"] for each in answer["status"]] for answer in (case.kproc, case.kafka))
    return sorted([*own, _SHUTDOWN]) == sorted(others) and any(
        step.api == case.step.api
        and step.body["group_id"] == case.step.body["group_id"]
        and step.body["shutdown_application"]
        and step.body["member_epoch"] <= _LEAVES  # A static member may leave for a time.
        for step in case.before
    )


def _is_of_consumers(case: Case) -> bool:
    group_id = case.step.body.get("group_id")
    return any(
        step.api == "consumer_group_heartbeat" and step.body["group_id"] == group_id for step in case.before
    )


def _interval_of_a_waiting_member(case: Case) -> bool:
    return case.step.api == "consumer_group_heartbeat" and case.difference.path == ("heartbeat_interval",)


def _previous_epoch_of_a_waiting_member(case: Case) -> bool:
    """kproc still knows the epoch before the member's present one. The member may have got a newer one at once."""
    is_heartbeat = case.step.api in ("consumer_group_heartbeat", "streams_group_heartbeat")
    if not is_heartbeat or case.codes != (0, _FENCED_MEMBER_EPOCH):
        return False
    known = re.search(r"smaller member epoch .* known by the group coordinator \((\d+)\)", str(case.kafka))
    return known is not None and case.kproc["member_epoch"] >= int(known[1])


def _interval_of_a_waiting_streams_member(case: Case) -> bool:
    return case.step.api == "streams_group_heartbeat" and case.difference.path == ("heartbeat_interval",)


def _tasks_again(case: Case) -> bool:
    """Tasks that kproc returns to a member that reports others."""
    is_role = case.difference.path[:1] in [(role,) for role in _ROLES]
    is_again = is_role and case.difference.kafka is None and case.difference.kproc is not None
    return case.step.api == "streams_group_heartbeat" and is_again and bool(case.step.body["member_epoch"])


def _static_member_again(case: Case) -> bool:
    is_heartbeat = case.step.api in ("consumer_group_heartbeat", "streams_group_heartbeat")
    # What kproc finds later may be an error all the same.
    others = (0, _INVALID_REQUEST, _INVALID_EXPRESSION)
    return is_heartbeat and case.codes in [(code, _UNRELEASED_INSTANCE) for code in others]


def _other_instance(case: Case) -> bool:
    is_rejected = case.codes == (_INVALID_REQUEST, 0) and "already used by a" in str(case.kproc)
    return case.step.api == "streams_group_heartbeat" and is_rejected


def _not_ready(case: Case) -> bool:
    """Kafka knows the state NotReady by its name in lower case, which is not_ready."""
    return case.step.api == "list_groups" and "NotReady" in case.step.body.get("states_filter", ())


def _forgotten_group(case: Case) -> bool:
    """A group that a member of the consumer protocol left, and that a JoinGroup with a member id named since then.

    A member with a rebalance timeout of 0 or 1 ms leaves by itself.
    """
    rows = [case.step.body, *case.difference.rows]
    group_ids = {row.get("group_id") for row in rows if isinstance(row.get("group_id"), str)}
    for group_id in group_ids:
        has_left = False
        for step in case.before:
            if step.body.get("group_id") != group_id:
                continue
            if step.api == "consumer_group_heartbeat":
                has_left |= step.body["member_epoch"] == _LEAVES or step.body["rebalance_timeout"] in (0, 1)
            elif step.api == "join_group" and has_left and step.body["member_id"]:
                return True
    return False


def _late_initialization(case: Case) -> bool:
    """A session's first ShareFetch, whose wait ends before Kafka has read the states of the share partitions."""
    is_first = case.step.api == "share_fetch" and case.step.body.get("share_session_epoch") == 0
    if not (is_first and case.has_answers) or case.kafka["responses"] or case.kafka.get("error_code"):
        return False
    rows = [row for topic in case.kproc["responses"] for row in topic["partitions"]]
    return not any(row["error_code"] or row["acquired_records"] for row in rows)


def _deleted_shared_records(case: Case) -> bool:
    """Kafka acquires nothing at the first ShareFetch that meets a deleted record, and shows the lag as before it."""
    if all(step.api != "delete_records" for step in case.before):
        return False
    if case.step.api == "describe_share_group_offsets":
        return case.difference.path[-1:] in (("start_offset",), ("lag",))
    if case.step.api == "share_acknowledge":
        return case.codes == (0, _INVALID_RECORD_STATE)
    if case.step.api != "share_fetch" or not case.has_answers:
        return False
    rows = [row for topic in case.kafka["responses"] for row in topic["partitions"]]
    return not any(row["acquired_records"] for row in rows)


def _behind_delivered_records(case: Case) -> bool:
    """Return True for an acknowledgement of records that nobody has acquired.

    In Kafka, more records are in flight: the rest of a batch of which a member has acquired the first records, and
    records that were deleted while a member held them.
    """
    is_code = case.difference.path[-1:] in (("error_code",), ("acknowledge_error_code",))
    if case.step.api not in _OF_SHARES or not is_code:
        return False
    codes = case.difference.kproc, case.difference.kafka
    if codes == (_INVALID_RECORD_STATE, _INVALID_REQUEST):
        has_more = any(step.api == "delete_records" or _has_record_limit(step) for step in case.before)
        return has_more and "not found in the cache" in str(case.kproc)
    return codes == (_INVALID_REQUEST, _INVALID_RECORD_STATE)


def _aborted_records(case: Case) -> bool:
    """An acknowledgement of records of an aborted transaction, which kproc ignores. Kafka's member holds the others."""
    if case.step.api not in _OF_SHARES or not case.has_answers:
        return False
    kproc, kafka = map(_acknowledge_codes, (case.kproc, case.kafka))
    aborted = _aborted_offsets(case.before)
    is_named = any(
        not aborted.isdisjoint(range(batch["first_offset"], batch["last_offset"] + 1))
        for topic in case.step.body["topics"]
        for row in topic["partitions"]
        for batch in row["acknowledgement_batches"]
    )
    return is_named and (kproc, kafka) == ([0], [_INVALID_RECORD_STATE])


def _acknowledge_codes(answer: Any) -> list[Any]:
    """Return the error code of each partition's acknowledgements."""
    rows = [row for topic in answer["responses"] for row in topic["partitions"]]
    return [row.get("acknowledge_error_code", row["error_code"]) for row in rows]


def _lag_over_aborted_records(case: Case) -> bool:
    """kproc counts aborted records as finished that the ShareFetch with the last acknowledgements has passed over."""
    kproc, kafka = case.difference.kproc, case.difference.kafka
    if case.step.api != "describe_share_group_offsets" or case.difference.path[-1:] != ("lag",):
        return False
    return bool(0 < kafka - kproc <= len(_aborted_offsets(case.before)))


def _aborted_offsets(steps: Sequence[Step]) -> set[int]:
    """Return the offsets of aborted transactions' records that a share group must not get.

    In the theme `queues`, which has such transactions, all records are in one partition.
    """
    end, pending, aborted = 0, set[int](), set[int]()
    if not any("read_committed" in str(step.body) for step in steps if step.api == "incremental_alter_configs"):
        return aborted
    for step in steps:
        if step.api == "produce":
            for batch in _batches_of(step.body):
                offsets = range(end, end + len(batch["records"]))
                end = offsets.stop
                if batch.get("attributes", 0) & _TRANSACTIONAL:
                    pending.update(offsets)
        elif step.api == "end_txn":
            end += 1  # The marker.
            aborted.update(() if step.body["committed"] else pending)
            pending.clear()
    return aborted


def _records_behind_held_ones(case: Case) -> bool:
    """Kafka also acquires records so far behind the first available one that kproc did not read them."""
    ours, theirs = _both_deliveries(case)
    is_shorter = 0 < len(ours) < len(theirs) and ours == theirs[: len(ours)]
    return is_shorter and bool(theirs[len(ours)][0] >= ours[0][0] + case.step.body["max_records"])


def _throttled_records(case: Case) -> bool:
    """One broker ends its response before or behind a record that was delivered often; the other one goes on."""
    ours, theirs = _both_deliveries(case)
    if 0 < len(ours) < len(theirs) and ours == theirs[: len(ours)]:
        return max(ours[-1][1], theirs[len(ours)][1]) >= _THROTTLED_FROM
    return _ends_inside_a_batch(case, ours, theirs)


def _ends_inside_a_batch(case: Case, ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> bool:
    """kproc ends its response inside a batch, before such a record, and Kafka before that batch."""
    more = ours[len(theirs) :]
    if not (theirs and more and ours[: len(theirs)] == theirs and more[0][1] > 1):
        return False
    partition = ChainMap(*case.difference.rows)["partition_index"]
    starts = _batch_starts(case.before, partition)
    return more[0][0] in starts and not starts & set(range(more[0][0] + 1, more[-1][0] + 2))


def _batch_starts(steps: Sequence[Step], partition: int) -> set[int]:
    """Return the first offsets of a partition's batches and its end. The themes of share groups write to one topic."""
    end, starts = 0, {0}
    for step in steps:
        if step.api != "produce":
            continue
        for row in (row for topic in step.body["topic_data"] for row in topic["partition_data"]):
            for batch in row["records"] or () if row["index"] == partition else ():
                end += len(batch["records"])
                starts.add(end)
    return starts


def _released_records_first(case: Case) -> bool:
    """kproc delivers released records. Kafka delivers others of a batch of which a member had a part."""
    ours, theirs = _both_deliveries(case)
    has_released = bool(ours and theirs) and ours[0][1] > 1 and ours[0][0] < theirs[0][0]
    return has_released and any(map(_has_record_limit, case.before))


def _has_record_limit(step: Step) -> bool:
    return bool(step.body.get("share_acquire_mode") == _RECORD_LIMIT)


def _both_deliveries(case: Case) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the deliveries of a partition in both answers. Both are empty unless its rows of a ShareFetch differ."""
    names = ChainMap(*case.difference.rows)
    if case.step.api != "share_fetch" or "partition_index" not in names:
        return [], []
    where = names["topic_id"], names["partition_index"]
    return _deliveries(case.kproc, *where), _deliveries(case.kafka, *where)


def _deliveries(answer: Any, topic_id: Any, partition: int) -> list[tuple[int, int]]:
    """Return each acquired offset of a partition with its delivery count."""
    return [
        (offset, each["delivery_count"])
        for topic in answer["responses"]
        for row in topic["partitions"]
        if (topic["topic_id"], row["partition_index"]) == (topic_id, partition)
        for each in row["acquired_records"]
        for offset in range(each["first_offset"], each["last_offset"] + 1)
    ]


def _id_of_denied_topic(case: Case) -> bool:
    """kproc does not return the id of a topic that the client may not read."""
    is_id = case.step.api == "alter_share_group_offsets" and case.difference.path[-1:] == ("topic_id",)
    return is_id and any(
        each["error_code"] == _REFUSALS[0] for row in case.difference.rows for each in row.get("partitions", ())
    )


def _start_behind_finished_records(case: Case) -> bool:
    """Kafka shows an older start offset, with the same lag."""
    if case.step.api != "describe_share_group_offsets" or case.difference.path[-1:] != ("start_offset",):
        return False
    return bool(case.difference.kproc > case.difference.kafka)


RULES: dict[str, Callable[[Case], bool]] = {
    "SASL": _logins,
    "transactions": _transactions,
    "Authorisation": _authorisation,
    "Metadata with auto-creation": _auto_creation,
    "UpdateFeatures": _features,
    "settings of the broker": _broker_settings,
    "broker loggers": _broker_loggers,
    "Fetch": _of_fetch,
    "a group request that a later one of the same member replaces": _replaced_group_request,
    "UNKNOWN_SERVER_ERROR": _kafka_fails,
    "AlterConfigs without an answer": _kafka_is_silent,
    "WriteTxnMarkers without an answer": _markers_without_an_answer,
    "error messages": _has_a_message,
    "what one request names twice": _asked_twice,
    "DescribeLogDirs": _sizes_on_disk,
    "timestamps in a batch's header": _header_kept,
    "ListOffsets": _deleted_records,
    "a group that a refused OffsetCommit named": _group_of_a_refused_commit,
    "a group that a refused JoinGroup named": _group_of_a_refused_join,
    "CreateTopics": _colliding_names,
    "DescribeQuorum": _endpoint_of_the_controller,
    "JoinGroup": _as_many_votes,
    "the leader of a group whose leader has left": _leader_after_another,
    "`min.insync.replicas` of a topic": _eligible_leaders,
    "Produce of a compressed batch with a timestamp too far in the future": _misdated_batch,
    "producer ids": _random_producer_ids,
    "lists in a request": _strict_list,
    "the interval of ConsumerGroupHeartbeat": _interval_of_a_waiting_member,
    "the previous epoch of a member that waits for partitions": _previous_epoch_of_a_waiting_member,
    "the interval of StreamsGroupHeartbeat": _interval_of_a_waiting_streams_member,
    "tasks in a StreamsGroupHeartbeat": _tasks_again,
    "the shutdown of a streams application without members": _shutdown_without_members,
    "the heartbeat that creates a streams group": _forgotten_first_heartbeat,
    "the topology of a streams group after a rejected heartbeat": _topology_after_a_rejection,
    "another instance id of a member of a streams group": _other_instance,
    "ListGroups of groups that are not ready": _not_ready,
    "the partitions that an assignor gives": _other_partitions,
    "a static member that joins again with its member id": _static_member_again,
    "ShareFetch before the state of a share partition is initialized": _late_initialization,
    "a share group whose next records were deleted": _deleted_shared_records,
    "records whose deliveries are half used up": _throttled_records,
    "records of a share group behind those that others hold": _records_behind_held_ones,
    "acknowledgements behind the last record that was delivered": _behind_delivered_records,
    "acknowledgements of records of aborted transactions": _aborted_records,
    "the lag of a share group over records of aborted transactions": _lag_over_aborted_records,
    "released records of a batch of which a member has acquired a part": _released_records_first,
    "the topic id of a denied topic in AlterShareGroupOffsets": _id_of_denied_topic,
    "start offset of a share partition whose records are all done": _start_behind_finished_records,
    "a JoinGroup of an unknown member in an empty consumer group": _forgotten_group,
}


def rule_for(case: Case) -> str | None:
    """The name of the rule that says that this difference is meant."""
    return next((name for name, holds in RULES.items() if holds(case)), None)
