"""Every test that UPSTREAM.md names exists, and none of Kafka's tests is left out."""

from __future__ import annotations

import re

import pytest

from tests.tidy.sources import ROOT, TEST, text_of

# How many tests each of Kafka's classes has.
COUNTS = {
    "SocketServerTest": 65,
    "ConnectionQuotasTest": 20,
    "RequestChannelTest": 5,
    "StandardAuthorizerTest": 20,
    "AclControlManagerTest": 10,
    "UniformHomogeneousAssignmentBuilderTest": 14,
    "UniformHeterogeneousAssignmentBuilderTest": 11,
    "RangeAssignorTest": 11,
    "CurrentAssignmentBuilderTest": 21,
    "GroupMetadataManagerTest": 41,
    "GroupMetadataManagerTest: consumer groups, states and timeouts": 19,
    "GroupMetadataManagerClassicGroupTest": 130,
    "GroupMetadataManagerConsumerGroupTest: conversions, expressions and replay": 83,
    "GroupCoordinatorShardCompactionReplayTest": 5,
    "ConsumerGroupTest": 36,
    "TargetAssignmentBuilderTest": 9,
    "ConsumerGroupHeartbeatRequestTest": 21,
    "SimpleAssignorTest": 11,
    "ShareGroupTest": 17,
    "GroupMetadataManagerTest: share groups": 41,
    "ShareGroupHeartbeatRequestTest": 9,
    "ShareCoordinatorShardTest": 36,
    "ShareCoordinatorServiceTest": 26,
    "SharePartitionTest": 26,
    "SharePartitionTest: loaded states, locks and log starts": 185,
    "SharePartitionTest of 2026": 54,
    "DelayedShareFetchTest": 7,
    "ShareSessionCacheTest": 8,
    "SharePartitionManagerTest": 55,
    "ShareFetchAcknowledgeRequestTest": 8,
    "StreamsGroupTest": 37,
    "GroupMetadataManagerTest: streams groups": 78,
    "StreamsGroupStaticMemberGroupMetadataManagerTest": 37,
    "StreamsGroupMixedGroupMetadataManagerTest": 7,
    "Streams: CurrentAssignmentBuilderTest": 18,
    "StickyTaskAssignorTest": 54,
    "CopartitionedTopicsEnforcerTest": 9,
    "RepartitionTopicsTest": 7,
    "ChangelogTopicsTest": 5,
    "InternalTopicManagerTest": 3,
    "StreamsGroupHeartbeatRequestTest": 18,
}
NEIGHBOURS = {
    "KafkaRequestHandlerTest",
    "DynamicNumNetworkThreadsTest",
    "DynamicConnectionQuotaTest",
    "DynamicBrokerConfigTest",
    "ThrottledChannelExpirationTest",
    "ControllerMutationQuotaTest",
    "ControllerMutationQuotaManagerTest",
    "RequestQuotaTest",
    "SelectorTest",
    "GarbageCollectedMemoryPoolTest",
    "NetworkReceiveTest",
    "ServerConnectionIdTest",
    "SocketServerConfigsTest",
    "KafkaConfigTest",
}


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "tests" / "UPSTREAM.md").read_text(encoding="utf-8")


def rows_of(text: str, section: str) -> list[tuple[str, str]]:
    """Return (Kafka's tests, ours or the reason) of the rows of a section's table."""
    part = text.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", part, re.MULTILINE)
    return [(name, ours) for name, ours in rows if name != "Kafka"]


def test_named_tests_exist(text: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", text))
    known = {name for path in (ROOT / "tests").rglob("*.py") for name in TEST.findall(text_of(path))}
    files = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert named
    assert named - known == set()
    assert [each for each in files if not (ROOT / each).is_file()] == []


@pytest.mark.parametrize("section", COUNTS)
def test_every_test_of_kafka_has_one_row(text: str, section: str) -> None:
    names = [name for names, _ in rows_of(text, section) for name in names.split(", ")]
    assert len(names) == len(set(names)) == COUNTS[section]


def test_every_neighbour_has_a_row(text: str) -> None:
    rows = rows_of(text, "Neighbours")
    assert {found for name, _ in rows for found in re.findall(r"\w+Test\b", name)} == NEIGHBOURS
