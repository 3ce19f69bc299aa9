"""The partitions behind each endpoint: which ones, when they are computed, and how many bytes they have at most."""

from __future__ import annotations

import pytest

from kproc.broker.streams import endpoints
from kproc.broker.streams.messages import EndpointPartitions
from kproc.broker.streams.records import Endpoint
from tests.support.bytecodes import count_bytecodes
from tests.support.streams_groups import HonestStreamsMember, StreamsRig, settle

HOST = Endpoint("h", 1)


@pytest.fixture
def rig() -> StreamsRig:
    rig = StreamsRig()
    rig.set_topics({"t": 4, "g-store-changelog": 4})
    return rig


def sent(member: HonestStreamsMember) -> tuple[EndpointPartitions, ...] | None:
    """The endpoints for a client that knows none."""
    return member.heartbeat(endpoint_epoch=-1, owned=None).endpoints


def test_endpoints_are_computed_once_until_tasks_change(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", endpoint=HOST)
    settle([first])
    before = sent(first)
    assert before == (EndpointPartitions(HOST, (("t", (0, 1, 2, 3)),), ()),)
    assert sent(first) is before
    settle([first, HonestStreamsMember(rig, "b")])
    assert sent(first) == (EndpointPartitions(HOST, (("t", (0, 1)),), ()),)


def test_endpoints_change_with_the_topics(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", endpoint=HOST)
    settle([first])
    assert sent(first)
    rig.set_topics({})
    assert sent(first) == (EndpointPartitions(HOST, (), ()),)


def test_endpoint_of_a_member_that_left_is_removed(rig: StreamsRig) -> None:
    members = [HonestStreamsMember(rig, name, endpoint=Endpoint(name, 1)) for name in "ab"]
    settle(members)
    assert len(sent(members[0])) == 2
    members[1].leave()
    assert [each.endpoint.host for each in sent(members[0])] == ["a"]


def test_endpoints_have_a_limit(rig: StreamsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member costs 5 bytes, its topic 5 and its partition 4."""
    monkeypatch.setattr(endpoints, "ENDPOINTS_BYTES_MAX", 5 + 9 + 5 + 9 + 5)
    members = [HonestStreamsMember(rig, name, endpoint=Endpoint(name, 1)) for name in "abcd"]
    settle(members)
    shown = sent(members[0])
    assert [len(each.active) for each in shown] == [1, 1, 0]


def test_unknown_endpoints_cost_little_in_a_large_group() -> None:
    rig = StreamsRig()
    rig.set_topics({"t": 2_000, "g-store-changelog": 2_000})
    member = HonestStreamsMember(rig, "a", endpoint=HOST)
    settle([member])
    assert count_bytecodes(lambda: sent(member), unless_in="test_endpoints.py") < 2_000
