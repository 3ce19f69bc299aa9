"""The partitions behind each endpoint: which ones, when they are computed, and how many bytes they have at most."""

from __future__ import annotations

import pytest

from kproc.broker.streams import endpoints
from kproc.broker.streams.messages import EndpointPartitions
from kproc.broker.streams.records import Endpoint
from tests.support.bytecodes import count_bytecodes
from tests.support.streams_groups import HonestStreamsMember, StreamsRig, settle

HOST = Endpoint("h", 1)


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


def test_endpoints_are_sent_when_tasks_have_moved(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", endpoint=Endpoint("h", 1))
    second = HonestStreamsMember(rig, "b", endpoint=Endpoint("h", 2))
    settle([first, second])
    result = first.heartbeat(endpoint_epoch=0)
    assert result.endpoints is not None
    assert {each.endpoint.port: each.active for each in result.endpoints} == {
        1: (("t", (0, 1)),),
        2: (("t", (2, 3)),),
    }
    assert first.heartbeat().endpoints is None
    settle([first, second, HonestStreamsMember(rig, "c")])
    assert first.endpoint_epoch > result.endpoint_epoch


@pytest.mark.parametrize(
    ("first", "second", "raised_by"),
    [
        pytest.param(None, Endpoint("h", 2), 1, id="gets one"),
        pytest.param(None, None, 0, id="has none"),
        pytest.param(Endpoint("h", 1), None, 1, id="loses it"),
        pytest.param(Endpoint("h", 1), Endpoint("h", 1), 0, id="keeps it"),
        pytest.param(Endpoint("h", 1), Endpoint("h", 2), 1, id="changes it"),
    ],
)
def test_static_member_returns_with_an_endpoint(
    rig: StreamsRig, first: Endpoint | None, second: Endpoint | None, raised_by: int
) -> None:
    member = HonestStreamsMember(rig, "a", instance_id="seat", process_id="p", endpoint=first)
    settle([member])
    member.leave(-2)
    successor = HonestStreamsMember(rig, "b", instance_id="seat", process_id="p", endpoint=second)
    result = successor.heartbeat(endpoint_epoch=member.endpoint_epoch)
    assert result.endpoint_epoch == member.endpoint_epoch + raised_by
    expected = None if not raised_by else [] if second is None else [second]
    assert (None if result.endpoints is None else [each.endpoint for each in result.endpoints]) == expected


def test_new_member_gets_the_endpoints_of_all(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a", endpoint=Endpoint("h", 1)).heartbeat()
    result = HonestStreamsMember(rig, "b", endpoint=Endpoint("h", 2)).heartbeat()
    assert result.endpoints is not None
    assert sorted(each.endpoint.port for each in result.endpoints) == [1, 2]
