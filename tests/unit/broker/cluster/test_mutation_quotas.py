"""controller_mutation_rate as the controller decides it: Kafka's ControllerMutationQuotaManagerTest and -QuotaTest."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.cluster.client_quotas import CLIENT_ID, CONTROLLER_MUTATION_RATE, USER, Entity
from kproc.broker.cluster.mutation_quotas import CLIENT
from kproc.common.errors import ErrorCode
from tests.support.in_memory_controller import InMemoryController, delete_wish, topic

EXCEEDED = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
ALICE: Entity = ((USER, "alice"),)


@pytest.fixture
def cluster() -> InMemoryController:
    """Two partitions a second for alice, of which she may save ten seconds' worth."""
    cluster = InMemoryController({"controller.quota.window.num": "10"})
    set_rate(cluster, ALICE, 2)
    return cluster


def set_rate(cluster: InMemoryController, entity: Entity, rate: float | None) -> None:
    cluster.image.client_quotas.set(entity, CONTROLLER_MUTATION_RATE, rate)


def create(
    cluster: InMemoryController,
    *topics: dict[str, Any],
    user: str = "alice",
    client_id: str = "c",
    strict: bool,
) -> tuple[list[int], int]:
    """The error code of each topic, and the throttle time."""
    reply = cluster.do(
        "create_topics", topics=list(topics), validate_only=False, **{CLIENT: [user, client_id, strict]}
    )
    return [row["error_code"] for row in reply["topics"]], reply["throttle_time"]


def test_new_client_may_use_saved_quota_plus_one_topic(
    cluster: InMemoryController,
) -> None:
    assert create(cluster, topic("a", 20), strict=True) == ([0], 0)
    assert create(cluster, topic("b", 10), strict=True) == ([0], 0), "it was not below zero"
    assert create(cluster, topic("c", 1), strict=True) == ([EXCEEDED], 5000)
    assert cluster.image.topic("c") is None


def test_mutation_quota_refills_at_its_rate(cluster: InMemoryController) -> None:
    create(cluster, topic("a", 30), strict=True)
    cluster.clock.advance_ms(4999)
    assert create(cluster, topic("b", 1), strict=True) == ([EXCEEDED], 1)
    cluster.clock.advance_ms(1)
    assert create(cluster, topic("b", 1), strict=True) == ([0], 0)


def test_nothing_more_is_saved_than_the_windows_hold(cluster: InMemoryController) -> None:
    create(cluster, topic("a", 20), strict=True)
    cluster.clock.advance_ms(3_600_000)
    assert create(cluster, topic("b", 21), strict=True) == ([0], 0)
    assert create(cluster, topic("c", 1), strict=True) == ([EXCEEDED], 500)


def test_topics_are_rejected_from_first_above_quota(cluster: InMemoryController) -> None:
    wishes = [topic("a", 25), topic("b", 1), topic("c", 1)]
    assert create(cluster, *wishes, strict=True) == ([0, EXCEEDED, EXCEEDED], 2500)
    assert sorted(cluster.image.topics_by_name) == ["a"]


def test_older_client_is_served_and_then_throttled(cluster: InMemoryController) -> None:
    assert create(cluster, topic("a", 20), topic("b", 10), strict=False) == ([0, 0], 5000)
    assert create(cluster, topic("c", 2), strict=False) == ([0], 6000)
    assert sorted(cluster.image.topics_by_name) == ["a", "b", "c"]


def test_topic_that_is_refused_for_another_reason_costs_nothing(cluster: InMemoryController) -> None:
    create(cluster, topic("a", 20), strict=True)
    codes, throttle_ms = create(cluster, topic("a", 20), topic("b", 10_001), strict=True)
    assert codes == [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.POLICY_VIOLATION]
    assert throttle_ms == 0
    assert create(cluster, topic("b", 1), strict=True) == ([0], 0)


def test_deleted_partitions_count_as_made_ones(cluster: InMemoryController) -> None:
    cluster.create(topic("a", 21), topic("b", 3))
    wishes = [delete_wish("a"), delete_wish("b")]
    reply = cluster.do("delete_topics", topics=wishes, **{CLIENT: ["alice", "c", True]})
    assert [row["error_code"] for row in reply["responses"]] == [0, EXCEEDED]
    assert reply["responses"][1]["error_message"] is None, "as by Kafka, whose clients know the words"
    assert reply["throttle_time"] == 500
    assert sorted(cluster.image.topics_by_name) == ["b"]


def test_added_partitions_count_without_existing_ones(cluster: InMemoryController) -> None:
    cluster.create(topic("a", 5))
    body = {"topics": [{"name": "a", "count": 26, "assignments": None}], "validate_only": False}
    assert cluster.do("create_partitions", **body, **{CLIENT: ["alice", "c", True]})["throttle_time"] == 0
    body["topics"] = [{"name": "a", "count": 27, "assignments": None}]
    reply = cluster.do("create_partitions", **body, **{CLIENT: ["alice", "c", True]})
    assert ([row["error_code"] for row in reply["results"]], reply["throttle_time"]) == ([EXCEEDED], 500)


def test_auto_created_topics_count_but_internal_ones_do_not(
    cluster: InMemoryController,
) -> None:
    create(cluster, topic("a", 21), strict=True)
    reply = cluster.do("auto_create_topics", names=["b"], **{CLIENT: ["alice", "c", True]})
    assert [row["error_code"] for row in reply["topics"]] == [EXCEEDED]
    reply = cluster.do("auto_create_topics", names=["b"])
    assert [row["error_code"] for row in reply["topics"]] == [0]


def test_users_and_client_ids_are_counted_as_their_quota_says(cluster: InMemoryController) -> None:
    create(cluster, topic("a", 21), client_id="one", strict=True)
    assert create(cluster, topic("b", 1), client_id="two", strict=True)[0] == [EXCEEDED], "one bucket a user"
    assert create(cluster, topic("b", 1), user="bob", strict=True)[0] == [0], "bob has no quota"
    set_rate(cluster, ((CLIENT_ID, "two"), (USER, "alice")), 2)
    assert create(cluster, topic("c", 1), client_id="two", strict=True)[0] == [0]
    set_rate(cluster, ((USER, None),), 1)
    assert create(cluster, topic("d", 11), user="carl", strict=True)[0] == [0]
    assert create(cluster, topic("e", 1), user="carl", strict=True)[0] == [EXCEEDED]
    assert create(cluster, topic("e", 1), user="dora", strict=True)[0] == [0], "each user has its own"


def test_removed_mutation_quota_has_no_effect(cluster: InMemoryController) -> None:
    create(cluster, topic("a", 500), strict=True)
    set_rate(cluster, ALICE, None)
    assert create(cluster, topic("b", 1), strict=True) == ([0], 0)


@pytest.mark.parametrize("rate", [1e-300, 5e-324, 1e-9])
def test_quota_that_lets_hardly_anything_through_is_kept_to(cluster: InMemoryController, rate: float) -> None:
    set_rate(cluster, ALICE, rate)
    assert create(cluster, topic("a"), strict=True) == ([0], 0)
    assert create(cluster, topic("b"), strict=True) == ([EXCEEDED], 2**31 - 1)
    assert create(cluster, topic("b"), strict=False) == ([0], 2**31 - 1)


def test_buckets_of_clients_that_are_gone_are_dropped(cluster: InMemoryController) -> None:
    quotas = cluster.state._topic_changes._quotas
    set_rate(cluster, ((CLIENT_ID, None), (USER, None)), 10)
    for number in range(20_000):
        quotas.of({CLIENT: ["bob", f"c{number}", True]}).charge(1)
        cluster.clock.advance_ms(10)
    assert len(quotas._full_ns) < 2_500
