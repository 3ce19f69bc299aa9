"""Operations of the control API against a broker, over HTTP as tests in other languages call them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kproc.embedded import Broker
from kproc.embedded.control import ControlServer
from tests.support.broker import forked_broker
from tests.support.groups import commit, find_coordinator
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.own_broker, pytest.mark.no_leak_guard]  # A restore replaces the broker's processes.
Call = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def controlled(fork_server: None) -> Iterator[tuple[Broker, Call]]:
    """A broker of this file in processes, and a function that calls an operation. A failure has a `status`."""
    with forked_broker()(transport="process") as broker, ControlServer(broker) as control:

        def call(operation: str, **arguments: Any) -> dict[str, Any]:
            headers = {"Authorization": f"Bearer {control.token}"}
            body = json.dumps(arguments).encode()
            request = urllib.request.Request(f"{control.url}/{operation}", body, headers)
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                    found: dict[str, Any] = json.load(answer)
            except urllib.error.HTTPError as error:
                found = {"status": error.code, **json.load(error)}
            return found

        yield broker, call


def test_time_moves_over_http(controlled: tuple[Broker, Call]) -> None:
    broker, call = controlled
    before = call("time/get")
    assert not before["is_frozen"]
    frozen = call("time/freeze")
    advanced = call("time/advance", ms=3_600_000)
    assert (advanced["is_frozen"], advanced["now_ms"] - frozen["now_ms"]) == (True, 3_600_000)
    assert broker.time.now_ms == advanced["now_ms"]
    assert not call("time/unfreeze")["is_frozen"]
    assert call("time/advance", ms=-1)["status"] == 400
    assert "100 years" in call("time/advance", ms=1 << 52)["error"]


def test_snapshots_are_restored_over_http(controlled: tuple[Broker, Call]) -> None:
    broker, call = controlled
    topic = fresh_name("kept")
    call("topic/create", name=topic)
    name = call("snapshot/create")["snapshot"]
    assert call("snapshot/list") == {"snapshots": [name]}
    call("topic/delete", name=topic)
    assert call("snapshot/restore", snapshot=name)["pid"] == broker.pid
    assert call("topic/records", name=topic) == {"name": topic, "records": []}
    assert call("snapshot/delete", snapshot=name) == {"snapshot": name}
    assert call("snapshot/list") == {"snapshots": []}
    gone = call("snapshot/restore", snapshot=name)
    assert gone["status"] == 400
    assert gone["error"].endswith(f"snapshot '{name}' does not exist: snapshot/list names those that do")
    lost = call("broker/lose-power")
    assert lost["status"] == 400
    assert lost["error"].startswith("lose_power() needs a record of what was synced")


def test_fault_rule_that_cannot_match_fails_over_http(controlled: tuple[Broker, Call]) -> None:
    _, call = controlled
    rejected = call("fault/add", rule={"action": "close", "apis": ["Heartbeat"], "topic": "t"})
    assert rejected["status"] == 400
    assert "Heartbeat have no topic" in rejected["error"]
    assert "match by group, client, user, versions" in rejected["error"]


def test_roles_pause_and_resume_over_http(controlled: tuple[Broker, Call]) -> None:
    broker, call = controlled
    assert call("role/pause", role="cleaner") == {"role": "cleaner", "index": 0}
    assert call("role/pause", role="cleaner")["error"].endswith(
        "cleaner 0 is paused already: resume it first"
    )
    assert call("role/resume", role="cleaner") == {"role": "cleaner", "index": 0}
    assert call("role/resume", role="cleaner")["status"] == 400
    assert "it has: " in call("role/pause", role="broker")["error"]
    # A reset resumes what a test has left paused, and a pause ends by itself.
    call("role/pause", role="handler")
    call("broker/reset")
    assert call("role/resume", role="handler")["status"] == 400
    call("role/pause", role="handler", ttl_ms=1)
    broker.create_topic(fresh_name("resumed"))


def test_roles_without_processes_are_a_wrong_request(fork_server: None) -> None:
    """A retry never succeeds, so the status is not 503."""
    with forked_broker()(transport="inline") as broker, ControlServer(broker) as control:
        for operation in ("role/kill", "role/pause"):
            status, answer = control.call(operation, b'{"role": "handler"}')
            assert status == 400, operation
            assert "no processes (transport 'inline')" in answer["error"]


def test_passing_errors_of_the_broker_can_be_retried(controlled: tuple[Broker, Call]) -> None:
    _, call = controlled
    topic = fresh_name("later")
    for error, status in (("NOT_CONTROLLER", 503), ("REQUEST_TIMED_OUT", 504), ("INVALID_REPLICATION_FACTOR", 400)):
        rule = {"action": "fail", "apis": ["CreateTopics"], "error": error}
        added = call("fault/add", rule=rule)
        assert call("topic/create", name=topic)["status"] == status
        call("fault/remove", id=added["id"])
    assert call("topic/create", name=topic) == {"name": topic}


def test_records_requests_and_groups_are_seen_over_http(controlled: tuple[Broker, Call]) -> None:
    broker, call = controlled
    topic, group = fresh_name("seen"), fresh_name("group")
    call("topic/create", name=topic)
    assert call("group/get", name=group) == {"name": group, "state": "Dead"}
    assert call("request/wait")["error"].startswith("no request is recorded")
    assert call("request/record", limit=100) == {"limit": 100}
    with RawClient(broker.bootstrap) as client:
        client.produce(topic, batch(b"text"))
        client.produce(topic, batch(b"\xff"))
        find_coordinator(client, group)
        commit(client, group, topic, {0: 1})
    [seen] = call("request/wait", api="OffsetCommit", match={"group": group})["requests"]
    assert (seen["api"], seen["result"], seen["fields"]["group_id"]) == ("OffsetCommit", "ok", group)
    found = call("request/list", api="Produce", match={"topic": topic, "version": seen["version"] + 99})
    assert found == {"requests": [], "lost": 0}
    assert len(call("request/list", api="Produce", match={"topic": topic}, last=1)["requests"]) == 1
    late = call("request/wait", api="Heartbeat", timeout_ms=0)
    assert late["status"] == 504
    assert f"  {topic}  ok  " in late["error"]
    assert "unknown field `topics`" in call("request/list", match={"topics": "t"})["error"]
    assert call("request/stop") == {"lost": 0}
    records = call("topic/records", name=topic)["records"]
    assert [each["value"] for each in records] == ["text", {"base64": "/w=="}]
    assert "more than 1 records" in call("topic/records", name=topic, limit=1)["error"]
    assert call("topic/records", name=topic, isolation="none")["status"] == 400
    described = call("group/wait", name=group, state="Empty", members=0)
    assert (described["type"], described["members"]) == ("classic", [])
    assert described["offsets"] == [{"topic": topic, "partition": 0, "offset": 1, "lag": 1}]
    assert call("group/wait", name=group, state="Stable", timeout_ms=0)["status"] == 504
