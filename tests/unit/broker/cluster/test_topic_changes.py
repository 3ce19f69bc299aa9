"""The errors are those that Apache Kafka 4.3.0 answered to the same requests, code and words."""

from __future__ import annotations

import pytest

from tests.support.cases import in_one_test
from tests.support.in_memory_controller import NO_ID, InMemoryController, delete_wish, outcome, topic

INVALID_TOPIC, EXISTS, PARTITIONS, FACTOR, ASSIGNMENT, CONFIG, REQUEST, POLICY = (
    17,
    36,
    37,
    38,
    39,
    40,
    42,
    44,
)
UNKNOWN, UNKNOWN_ID = 3, 100
NOT_POSITIVE = "Number of partitions was set to an invalid non-positive value."
NOT_A_FACTOR = "Replication factor must be larger than 0, or -1 to use the default value."
MANUAL_FACTOR = "A manual partition assignment was specified, but replication factor was not set to -1."
MANUAL_COUNT = "A manual partition assignment was specified, but numPartitions was not set to -1."
DENSE = "partitions should be a consecutive 0-based integer sequence"


@pytest.fixture
def cluster() -> InMemoryController:
    cluster = InMemoryController({"num.partitions": "3"}, handlers=2)
    cluster.create(topic("there"), topic("my.t"))
    return cluster


REFUSED = [
    (topic("there"), EXISTS, "Topic 'there' already exists."),
    (topic("my_t"), INVALID_TOPIC, "Topic 'my_t' collides with existing topic: my.t"),
    (topic(""), INVALID_TOPIC, "Topic name is invalid: the empty string is not allowed"),
    (topic("x", 0), PARTITIONS, NOT_POSITIVE),
    (topic("x", -2), PARTITIONS, NOT_POSITIVE),
    (topic("x", 1, 0), FACTOR, NOT_A_FACTOR),
    (topic("x", 1, -2), FACTOR, NOT_A_FACTOR),
    (topic("x", configs={"nope": "1"}), CONFIG, "Unknown topic config name: nope"),
    (
        topic("x", configs={"retention.ms": "abc"}),
        CONFIG,
        "Invalid value abc for configuration retention.ms: Not a number of type LONG",
    ),
    (
        topic("x", configs={"retention.ms": "-5"}),
        CONFIG,
        "Invalid value -5 for configuration retention.ms: Value must be at least -1",
    ),
    (
        topic("x", configs={"retention.ms": None}),
        CONFIG,
        "Null value not supported for topic configs: retention.ms",
    ),
    (topic("x", -1, -1, assignments=[(0, [2])]), ASSIGNMENT, None),
    (
        topic("x", -1, -1, assignments=[(0, [1, 1])]),
        ASSIGNMENT,
        "The manual partition assignment includes the broker 1 more than once.",
    ),
    (topic("x", -1, -1, assignments=[(1, [1])]), ASSIGNMENT, DENSE),
    (topic("x", -1, -1, assignments=[(0, [1]), (2, [1])]), ASSIGNMENT, DENSE),
    (
        topic("x", -1, -1, assignments=[(0, [])]),
        ASSIGNMENT,
        "The manual partition assignment includes an empty replica list.",
    ),
    (
        topic("x", -1, -1, assignments=[(0, [1]), (0, [1])]),
        ASSIGNMENT,
        "Found multiple manual partition assignments for partition 0",
    ),
    (topic("x", -1, 1, assignments=[(0, [1])]), REQUEST, MANUAL_FACTOR),
    (topic("x", 2, 1, assignments=[(0, [1])]), REQUEST, MANUAL_FACTOR),
    (topic("x", 2, -1, assignments=[(0, [1]), (1, [1])]), REQUEST, MANUAL_COUNT),
    (topic("x", 10_001), POLICY, "Excessively large number of partitions per request. The limit is 10000."),
]


@pytest.mark.parametrize(("wish", "code", "message"), REFUSED)
def test_topic_creation_errors_match_kafka(cluster, wish, code, message):
    before = cluster.image.version
    (row,) = cluster.create(wish)
    assert row["error_code"] == code
    assert message is None or row["error_message"] == message
    assert (row["topic_id"], row["num_partitions"], row["replication_factor"]) == (NO_ID, -1, -1)
    assert row["configs"] == []
    assert cluster.image.version == before


def test_a_broker_that_does_not_exist_is_named(cluster):
    (row,) = cluster.create(topic("x", -1, -1, assignments=[(0, [1]), (1, [1, 2])]))
    assert row["error_message"] == (
        "The manual partition assignment includes broker 2, but no such broker is registered."
    )


def test_replication_above_broker_count_is_rejected_like_kafka(cluster):
    (row,) = cluster.create(topic("x", 1, 2))
    assert row["error_code"] == FACTOR
    assert row["error_message"].startswith(
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached "
        "because only 1 broker(s) are registered"
    )


def test_clamped_replication_factor_is_logged_once(caplog):
    cluster = InMemoryController({"kproc.clamp.replication.factor": True})
    rows = [cluster.create(topic(name, 1, factor))[0] for name, factor in (("one", 1), ("two", 3), ("three", 3))]
    assert [row["replication_factor"] for row in rows] == [1, 1, 1]
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "topic two gets 1 replica instead of 3"
    ]


@pytest.mark.parametrize(
    ("wish", "count"),
    [
        (topic("x", 5), 5),
        (topic("x", -1, -1), 3),
        (topic("x", -1, 1), 3),
        (topic("x", -1, -1, assignments=[(1, [1]), (0, [1])]), 2),
        (topic("x", 10_000), 10_000),
    ],
)
def test_create_topic_answers_partition_count(cluster, wish, count):
    (row,) = cluster.create(wish)
    assert outcome([row]) == [(0, None)]
    assert (row["num_partitions"], row["replication_factor"]) == (count, 1)
    found = cluster.image.topic("x")
    assert len(found.partitions) == count
    assert found.topic_id == row["topic_id"] != NO_ID


def test_the_answer_shows_the_configs_in_force(cluster):
    (row,) = cluster.create(topic("x", configs={"retention.ms": " 5000 "}))
    configs = {config["name"]: config for config in row["configs"]}
    assert configs["retention.ms"] == {
        "name": "retention.ms",
        "value": " 5000 ",
        "read_only": False,
        "config_source": 1,
        "is_sensitive": False,
    }
    assert configs["segment.bytes"]["config_source"] == 5
    assert cluster.image.topic("x").configs == {"retention.ms": "5000"}


def test_validate_only_answers_as_if_and_changes_nothing(cluster):
    before = cluster.image.version
    good, bad = cluster.create(topic("x", 2), topic("there"), validate_only=True)
    assert good["num_partitions"] == 2
    assert bad["error_code"] == EXISTS
    assert cluster.image.version == before
    assert cluster.image.topic("x") is None


def test_duplicate_name_fails_once_and_others_succeed(cluster):
    rows = cluster.create(topic("d"), topic("e"), topic("d", 2))
    assert [(row["name"], *outcome([row])[0]) for row in rows] == [
        ("d", REQUEST, "Duplicate topic name."),
        ("e", 0, None),
    ]


def test_configs_are_answered_as_given_and_stored_normalised(cluster):
    given = {"preallocate": "TRUE", "min.cleanable.dirty.ratio": "1", "cleanup.policy": "delete , compact"}
    (row,) = cluster.create(topic("given", configs=given))
    shown = {config["name"]: config["value"] for config in row["configs"]}
    assert {name: shown[name] for name in given} == given
    assert cluster.image.topic("given").configs == {
        "preallocate": "true",
        "min.cleanable.dirty.ratio": "1.0",
        "cleanup.policy": "delete,compact",
    }


def test_null_config_is_rejected_even_if_value_follows(cluster):
    wish = topic("x")
    wish["configs"] = [{"name": "retention.ms", "value": value} for value in (None, "5")]
    told = "Null value not supported for topic configs: retention.ms"
    assert outcome(cluster.create(wish)) == [(CONFIG, told)]


def test_topics_of_one_request_may_not_collide_with_each_other(cluster):
    assert outcome(cluster.create(topic("q.q"), topic("q_q"))) == [
        (0, None),
        (INVALID_TOPIC, "Topic 'q_q' collides with existing topic: q.q"),
    ]


def test_request_with_too_many_changes_is_rejected(cluster):
    rows = cluster.create(topic("x", 9_000), topic("y", 1_001), topic("z", 1_000))
    assert [row["error_code"] for row in rows] == [0, POLICY, 0]


# -- automatic creation


def test_auto_creation_uses_broker_defaults_and_tolerates_race(cluster):
    reply = cluster.do("auto_create_topics", names=["there", "new", "new", "my_t"])
    assert [(row["name"], row["error_code"]) for row in reply["topics"]] == [
        ("there", 0),
        ("new", 0),
        ("my_t", INVALID_TOPIC),
    ]
    assert len(cluster.image.topic("new").partitions) == 3
    assert len(cluster.image.topic("there").partitions) == 1


# -- deletion


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ([delete_wish("nope")], [(UNKNOWN, "This server does not host this topic-partition.")]),
        ([delete_wish("a b")], [(UNKNOWN, "This server does not host this topic-partition.")]),
        ([delete_wish(None, b"x" * 16)], [(UNKNOWN_ID, "This server does not host this topic ID.")]),
        (
            [delete_wish("there", b"x" * 16)],
            [(REQUEST, "You may not specify both topic name and topic id.")],
        ),
        ([delete_wish(None)], [(REQUEST, "Neither topic name nor id were specified.")]),
        ([delete_wish("there"), delete_wish("there")], [(REQUEST, "Duplicate topic name.")]),
        ([delete_wish(None, b"x" * 16)] * 2, [(REQUEST, "Duplicate topic id.")]),
        ([delete_wish("there")], [(0, None)]),
        (
            [delete_wish("there"), delete_wish("nope")],
            [(0, None), (UNKNOWN, "This server does not host this topic-partition.")],
        ),
    ],
)
def test_deletion_answers_as_kafka_does(cluster, wishes, expected):
    rows = cluster.do("delete_topics", topics=wishes)["responses"]
    assert outcome(rows) == expected
    assert (cluster.image.topic("there") is None) == (expected[0] == (0, None))


def test_a_topic_is_deleted_by_its_id_and_the_answer_names_it(cluster):
    topic_id = cluster.image.topic("there").topic_id
    (row,) = cluster.do("delete_topics", topics=[delete_wish(None, topic_id)])["responses"]
    assert (row["name"], row["topic_id"], row["error_code"]) == ("there", topic_id, 0)
    assert cluster.image.topic_by_id(topic_id) is None


def test_an_entry_with_both_is_no_second_naming(cluster):
    topic_id = cluster.image.topic("there").topic_id
    wishes = [delete_wish("there", topic_id), delete_wish("there")]
    assert outcome(cluster.do("delete_topics", topics=wishes)["responses"]) == [
        (REQUEST, "You may not specify both topic name and topic id."),
        (0, None),
    ]
    assert cluster.image.topic("there") is None


def test_topic_given_by_name_and_id_is_kept_and_answered_once(cluster):
    topic_id = cluster.image.topic("there").topic_id
    rows = cluster.do("delete_topics", topics=[delete_wish("there"), delete_wish(None, topic_id)])[
        "responses"
    ]
    told = "The provided topic name maps to an ID that was already supplied."
    assert outcome(rows) == [(REQUEST, told)]
    assert cluster.image.topic("there") is not None


def test_topic_given_by_name_and_repeated_id_is_kept(cluster):
    topic_id = cluster.image.topic("there").topic_id
    wishes = [delete_wish("there"), delete_wish(None, topic_id), delete_wish(None, topic_id)]
    rows = cluster.do("delete_topics", topics=wishes)["responses"]
    told = "The provided topic name maps to an ID that was already supplied."
    assert outcome(rows) == [(REQUEST, told), (REQUEST, "Duplicate topic id.")]
    assert cluster.image.topic("there") is not None


def test_a_deleted_name_can_be_used_again_with_another_id(cluster):
    before = cluster.image.topic("my.t").topic_id
    cluster.do("delete_topics", topics=[delete_wish("my.t")])
    (row,) = cluster.create(topic("my_t"))
    assert row["error_code"] == 0
    assert row["topic_id"] != before


def test_deletion_can_be_switched_off():
    cluster = InMemoryController({"delete.topic.enable": "false"})
    cluster.create(topic("t"))
    assert cluster.do("delete_topics", topics=[delete_wish("t")]) == {
        "failure": [73, "Topic deletion is disabled."]
    }
    assert cluster.image.topic("t") is not None


# -- more partitions


def grow(name: str, count: int, assignments: list[list[int]] | None = None) -> dict[str, object]:
    rows = None if assignments is None else [{"broker_ids": brokers} for brokers in assignments]
    return {"name": name, "count": count, "assignments": rows}


@in_one_test(
    ("wish", "expected"),
    [
        (grow("t", 2), (PARTITIONS, "Topic already has 2 partition(s).")),
        (grow("t", 1), (PARTITIONS, "The topic t currently has 2 partition(s); 1 would not be an increase.")),
        (
            grow("t", -1),
            (PARTITIONS, "The topic t currently has 2 partition(s); -1 would not be an increase."),
        ),
        (grow("nope", 3), (UNKNOWN, None)),
        (
            grow("t", 4, [[1]]),
            (
                ASSIGNMENT,
                "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
            ),
        ),
        (
            grow("t", 3, []),
            (
                ASSIGNMENT,
                "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified.",
            ),
        ),
        (
            grow("t", 3, [[2]]),
            (
                ASSIGNMENT,
                "The manual partition assignment includes broker 2, but no such broker is registered.",
            ),
        ),
        (grow("t", 3, [[]]), (ASSIGNMENT, "The manual partition assignment includes an empty replica list.")),
        (grow("t", 20_000), (POLICY, "Excessively large number of partitions per request. The limit is 10000.")),
        (grow("t", 3, [[1]]), (0, None)),
        (grow("t", 5), (0, None)),
    ],
)
def test_growing_a_topic_answers_as_kafka_does(wish, expected):
    cluster = InMemoryController(handlers=3)
    cluster.create(topic("t", 2))
    owners_before = [partition.owner for partition in cluster.image.topic("t").partitions]
    for validate_only in (True, False):
        assert len(cluster.image.topic("t").partitions) == 2
        rows = cluster.do("create_partitions", topics=[wish], validate_only=validate_only)["results"]
        assert outcome(rows) == [expected]
    partitions = cluster.image.topic("t").partitions
    assert len(partitions) == (wish["count"] if expected[0] == 0 else 2)
    assert [partition.owner for partition in partitions[:2]] == owners_before
