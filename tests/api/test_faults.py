"""Fault rules over the wire: which part of a request fails, what ends a rule, and who counts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from kproc.client import Client, ClientError
from kproc.client.faults import Faults
from kproc.embedded import Broker
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker, forked_broker
from tests.support.command_line import call_kproc
from tests.support.raw import (
    NO_TOPIC_ID,
    Closed,
    RawClient,
    address_of,
    batch,
    fetch_fields,
    list_offsets_fields,
    produce_fields,
    values_of,
)
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS, wait_until

NOT_LEADER = 6
UNKNOWN_TOPIC = 3
TOPIC_AUTHORIZATION_FAILED = 29
COORDINATOR_NOT_AVAILABLE = 15


@pytest.fixture(scope="module")
def faulty(fork_server: None) -> Iterator[Broker]:
    """A broker of this file with two Handlers."""
    with forked_broker()({"num.io.threads": 2, "num.network.threads": 1}) as running:
        yield running


@pytest.fixture
def orders(faulty: Broker) -> Iterator[str]:
    """A topic with four partitions, and the check that a test leaves no rule."""
    name = fresh_name("orders")
    faulty.create_topic(name, partitions=4)
    yield name
    assert faulty.faults.list() == []


@pytest.fixture
def connection(faulty: Broker) -> Iterator[RawClient]:
    with RawClient(faulty.bootstrap) as opened:
        yield opened


def produce_all(connection: RawClient, topic: str, value: bytes) -> dict[int, int]:
    """Produce a record to each of four partitions by one request. Return the error codes by partition."""
    fields = produce_fields([(topic, NO_TOPIC_ID, [(index, batch(value)) for index in range(4)])])
    [answer] = connection.call(ApiKey.PRODUCE, 9, fields)["responses"]
    return {row["index"]: row["error_code"] for row in answer["partition_responses"]}


def fetch_all(connection: RawClient, topic: str, **more: int) -> dict[int, tuple[int, list[bytes | None]]]:
    """Fetch four partitions. Return (error code, values) by partition of the response."""
    fields = fetch_fields([(topic, NO_TOPIC_ID, [(index, 0) for index in range(4)])], **more)
    responses = connection.call(ApiKey.FETCH, 12, fields)["responses"]
    return {
        row["partition_index"]: (row["error_code"], [value for _, value in values_of(row["records"])])
        for each in responses
        for row in each["partitions"]
    }


def test_only_matching_partitions_of_produce_fail(faulty: Broker, orders: str, connection: RawClient) -> None:
    with faulty.faults.fail("Produce", topic=orders, partition=2, error="NOT_LEADER_OR_FOLLOWER") as rule:
        assert produce_all(connection, orders, b"a") == {0: 0, 1: 0, 2: NOT_LEADER, 3: 0}
    assert produce_all(connection, orders, b"b") == dict.fromkeys(range(4), 0)
    assert rule.hits == 1
    assert fetch_all(connection, orders) == {
        index: (0, [b"b"] if index == 2 else [b"a", b"b"]) for index in range(4)
    }


def test_only_matching_partitions_of_fetch_fail(faulty: Broker, orders: str, connection: RawClient) -> None:
    produce_all(connection, orders, b"a")
    with faulty.faults.fail("Fetch", topic=orders, partition=1, error="NOT_LEADER_OR_FOLLOWER"):
        # It does not wait for more bytes than there are.
        found = fetch_all(connection, orders, min_bytes=10_000, max_wait_ms=60_000)
    assert found == {index: (NOT_LEADER, []) if index == 1 else (0, [b"a"]) for index in range(4)}


def test_fetch_session_goes_on_after_a_failed_fetch(
    faulty: Broker, orders: str, connection: RawClient
) -> None:
    """The second request of the session names no partition, so that only the session knows them."""
    produce_all(connection, orders, b"a")
    all_of_it = [(orders, NO_TOPIC_ID, [(0, 0), (1, 1)])]
    first = connection.call(ApiKey.FETCH, 12, fetch_fields(all_of_it, session=(0, 0)))
    session_id = first["session_id"]
    with faulty.faults.fail("Fetch", topic=orders, partition=1, error="NOT_LEADER_OR_FOLLOWER") as rule:
        again = connection.call(ApiKey.FETCH, 12, fetch_fields([], session=(session_id, 1)))
    rows = [row for each in again["responses"] for row in each["partitions"]]
    assert again["error_code"] == 0
    assert {row["partition_index"]: row["error_code"] for row in rows}[1] == NOT_LEADER
    assert rule.hits == 1
    last = connection.call(ApiKey.FETCH, 12, fetch_fields([], session=(session_id, 2)))
    assert last["error_code"] == 0


def test_error_of_a_group_is_answered_without_the_work(faulty: Broker, connection: RawClient) -> None:
    group = fresh_name("group")
    fields = {"key_type": 0, "coordinator_keys": [group]}
    with faulty.faults.fail(
        "FindCoordinator", group=group, error="COORDINATOR_NOT_AVAILABLE", times=1
    ) as rule:
        codes = [
            connection.call(ApiKey.FIND_COORDINATOR, 4, fields)["coordinators"][0]["error_code"]
            for _ in range(2)
        ]
    assert codes == [COORDINATOR_NOT_AVAILABLE, 0]
    assert rule.counts == (2, 1)


def test_times_counts_requests_of_all_handlers(faulty: Broker, orders: str) -> None:
    """Partitions of both Handlers, each with a connection of its own, all at once."""

    def produce(partition: int) -> int:
        with RawClient(faulty.bootstrap) as each:
            failed = 0
            for _ in range(50):
                row = each.produce(orders, batch(b"x"), partition=partition)
                failed += row["error_code"] == NOT_LEADER
            return failed

    with (
        faulty.faults.fail(
            "Produce", topic=orders, error="NOT_LEADER_OR_FOLLOWER", times=77, after=10
        ) as rule,
        ThreadPoolExecutor(4) as pool,
    ):
        assert sum(pool.map(produce, range(4))) == 77
        assert rule.counts == (200, 77)


def test_first_due_rule_acts_and_later_ones_do_not_count(
    faulty: Broker, orders: str, connection: RawClient
) -> None:
    with (
        faulty.faults.fail("Produce", topic=orders, error="NOT_LEADER_OR_FOLLOWER", times=1) as first,
        faulty.faults.fail("Produce", topic=orders, error="KAFKA_STORAGE_ERROR", times=1) as second,
    ):
        codes = [set(produce_all(connection, orders, b"x").values()) for _ in range(3)]
        assert codes == [{NOT_LEADER}, {56}, {0}]
        assert (first.counts, second.counts) == ((3, 1), (2, 1))


def test_delay_holds_up_later_requests_of_the_connection_only(
    faulty: Broker, orders: str, connection: RawClient
) -> None:
    with faulty.faults.delay("Produce", ms=400, topic=orders, times=1) as rule:
        connection.send(ApiKey.PRODUCE, 9, produce_fields([(orders, NO_TOPIC_ID, [(0, batch(b"a"))])]))
        for value in (b"b", b"c"):
            connection.send(ApiKey.PRODUCE, 9, produce_fields([(orders, NO_TOPIC_ID, [(0, batch(value))])]))
        rule.wait_for_hits()
        with RawClient(faulty.bootstrap) as other:
            assert other.end_offset(orders) == 0
        offsets = [
            connection.receive(ApiKey.PRODUCE, 9)[1]["responses"][0]["partition_responses"][0]["base_offset"]
            for _ in range(3)
        ]
    assert offsets == [0, 1, 2]


def test_client_that_leaves_during_a_delay_stores_nothing(faulty: Broker, orders: str) -> None:
    """Its large request lies in the arena, whose memory is needed for the next ones."""
    with faulty.faults.delay("Produce", ms=60_000, topic=orders) as rule:
        for number in range(1, 4):
            with RawClient(faulty.bootstrap) as leaving:
                for _ in range(2):
                    leaving.send(
                        ApiKey.PRODUCE,
                        9,
                        produce_fields([(orders, NO_TOPIC_ID, [(0, batch(b"x" * 900_000))])]),
                    )
                rule.wait_for_hits(number)
    with RawClient(faulty.bootstrap) as other:
        other.produce(orders, batch(b"y" * 900_000))
        assert other.end_offset(orders) == 1


def test_rule_ends_with_the_process_that_added_it(faulty: Broker) -> None:
    code = (
        "import sys, time\n"
        "from kproc.client import Client\n"
        "from kproc.client.faults import Faults\n"
        f"faults = Faults(lambda: Client.connect({faulty.host!r}, {faulty.port}))\n"
        "faults.close('Produce', topic='other')\n"
        "print('added', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"added\n"
        assert len(faulty.faults.list()) == 1
        child.send_signal(signal.SIGKILL)
        wait_until(lambda: not faulty.faults.list(), seconds=PATIENCE_SECONDS, what="the rule is gone")


def test_counts_are_read_on_one_connection(faulty: Broker) -> None:
    opened: list[Client] = []

    def connect() -> Client:
        opened.append(Client.connect(faulty.host, faulty.port))
        return opened[-1]

    faults = Faults(connect)
    with faults.close("Produce", topic="other") as rule:
        assert {rule.hits for _ in range(5)} == {0}
        assert len(opened) == 2  # One keeps the rule.
        # A broker closes idle connections.
        opened[1].detach().shutdown(socket.SHUT_RDWR)
        assert {rule.hits for _ in range(5)} == {0}
        assert len(opened) == 3
    assert [client.fileno() for client in opened] == [-1] * 4
    assert faults.list() == []
    assert opened[-1].fileno() == -1


def test_rule_with_a_time_ends_by_itself(faulty: Broker) -> None:
    rule = faulty.faults.add({"action": "close", "apis": ["Produce"], "topic": "other"}, ttl_ms=50)
    wait_until(lambda: not faulty.faults.list(), seconds=PATIENCE_SECONDS, what="the rule is gone")
    wait_until(lambda: faulty.faults.find(rule.id) is None, seconds=PATIENCE_SECONDS, what="it is not kept")
    assert rule.counts == (0, 0)
    rule.remove()


def test_rule_whose_client_gives_up_is_removed(faulty: Broker) -> None:
    """A rule is added when all Handlers apply it, and one that is paused holds that up."""
    with faulty.pause_role("handler", 1):
        for _ in range(4):  # Connections have both Handlers as their homes.
            faults = Faults(lambda: Client.connect(faulty.host, faulty.port, timeout_ms=300))
            with pytest.raises(ClientError, match="gave no answer in 300 ms"):
                faults.close("Produce", topic="other")
    # Every Handler has read these requests when it applies a later rule.
    for _ in range(2):
        faulty.faults.close("Produce", topic="later").remove()
    wait_until(lambda: not faulty.faults.list(), seconds=PATIENCE_SECONDS, what="the rules are gone")


def test_rule_has_a_limited_number_of_apis(faulty: Broker) -> None:
    with pytest.raises(ClientError, match=r"of length <= 200 - at `\$\.rule\.apis`"):
        faulty.faults.close(["Produce"] * 201)


def test_rule_ends_with_its_connection_or_is_kept(faulty: Broker) -> None:
    """A client that ends right after the broker's answer leaves no rule, as a command does on purpose."""
    ids = []
    for is_kept in (False, True):
        with Client.connect(faulty.host, faulty.port) as client:
            ids.append(client.operate("add-fault", rule={"action": "close", "topic": "other"})["id"])
            if is_kept:
                client.operate("keep-fault", id=ids[-1])
    wait_until(
        lambda: [each["id"] for each in faulty.faults.list()] == ids[1:],
        seconds=PATIENCE_SECONDS,
        what="only the kept rule is left",
    )
    faulty.faults.clear()


def fails_produce(faulty: Broker) -> bool:
    """Return True if a rule lets Produce fail, and False if its Handler has just died."""
    with suppress(Closed), RawClient(faulty.bootstrap) as client:
        return set(produce_all(client, "orders", b"x").values()) == {NOT_LEADER}
    return False


def has_no_rule(faulty: Broker) -> bool:
    with suppress(ClientError):  # Connections to roles that die are closed.
        return not faulty.faults.list()
    return False


def test_rule_outlives_its_handler_but_not_its_client() -> None:
    """With one Handler, nobody else learns of the connection's end while that one is dead."""
    with forked_broker()({"num.io.threads": 1, "num.network.threads": 1}) as faulty:
        faulty.create_topic("orders", partitions=4)
        for has_ended_before in (True, False):
            faulty.faults.fail("Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER")
            faulty.kill_role("handler", wait=False)
            if not has_ended_before:
                wait_until(
                    lambda: fails_produce(faulty), seconds=PATIENCE_SECONDS, what="the rule acts again"
                )
            faulty.faults.release()
            wait_until(lambda: has_no_rule(faulty), seconds=PATIENCE_SECONDS, what="the rule is gone")


def test_rule_of_silent_connection_ends_with_its_processor() -> None:
    """The new Handler has never heard of the connection, because it has sent no request since."""
    with forked_broker()({"num.io.threads": 1, "num.network.threads": 1}) as faulty:
        for is_restarted_between in (True, False):
            faulty.faults.close("Produce", topic="orders")
            with Client.connect(faulty.host, faulty.port) as client:
                pids = {row["role"]: row["pid"] for row in client.operate("status")["processes"]}
            os.kill(pids["handler"], signal.SIGKILL)
            if is_restarted_between:
                faulty.wait_until_idle(PATIENCE_SECONDS)
                assert len(faulty.faults.list()) == 1
            os.kill(pids["processor"], signal.SIGKILL)
            wait_until(lambda: has_no_rule(faulty), seconds=PATIENCE_SECONDS, what="the rule is gone")


def test_restarted_handler_applies_the_rules() -> None:
    with forked_broker()({"num.io.threads": 2, "num.network.threads": 1}) as faulty:
        faulty.create_topic("orders", partitions=4)
        rule = faulty.faults.fail("Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER")
        for pid in [row["pid"] for row in faulty.processes if row["role"] == "handler"]:
            os.kill(pid, signal.SIGKILL)
        answered = 0
        while answered < 8:  # Connections have both Handlers as their homes.
            # Connections to a Handler that dies are closed.
            with suppress(Closed), RawClient(faulty.bootstrap) as client:
                assert set(produce_all(client, "orders", b"x").values()) == {NOT_LEADER}
                answered += 1
        assert rule.hits >= answered
        rule.remove()
        with RawClient(faulty.bootstrap) as client:
            assert set(produce_all(client, "orders", b"x").values()) == {0}


def test_clear_removes_rules_of_other_processes(faulty: Broker) -> None:
    rules = [faulty.faults.close("Produce", topic="other") for _ in range(3)]
    assert len({rule.id for rule in rules}) == 3
    faulty.faults.clear()
    assert faulty.faults.list() == []


def test_rule_with_an_error_says_what_to_do(faulty: Broker) -> None:
    with pytest.raises(ClientError, match="unknown error 'NOT_A_LEADER': use a name of Kafka's protocol"):
        faulty.faults.fail("Produce", error="NOT_A_LEADER")
    with pytest.raises(TypeError, match="unknown condition 'group_id' of a fault rule"):
        faulty.faults.close("JoinGroup", group_id="x")  # type: ignore[call-arg]
    with pytest.raises(ClientError, match=r"Heartbeat have no topic, .*: match by group, client, user, versions"):
        faulty.faults.fail("Heartbeat", topic="x", error="UNKNOWN_MEMBER_ID")
    for member, value in {"ms": timedelta(seconds=1), "topic": b"orders", "probability": float("nan")}.items():
        with pytest.raises(TypeError, match=f"^{member} of a fault rule must be text, a number or a list"):
            faulty.faults.add({"action": "delay", "apis": ["Produce"], "ms": 5, member: value})
    assert faulty.faults.list() == []


def test_command_rejects_a_condition_that_never_matches(
    faulty: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--api", "Heartbeat", "--topic", "x", "-b", faulty.bootstrap)
    done = call_kproc(capsys, "fault", "add", "close", *options)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "requests of Heartbeat have no topic" in done.stderr


def test_clear_within_the_block_of_a_rule_keeps_its_counts(faulty: Broker) -> None:
    with faulty.faults.close("Produce", topic="other") as rule:
        faulty.faults.clear()
    assert rule.counts == (0, 0)


@pytest.mark.long
def test_command_removes_a_rule_that_closes_every_connection(faulty: Broker) -> None:
    faulty.faults.close()
    command = [sys.executable, "-m", "kproc", "fault", "remove", "--all", "--bootstrap", faulty.bootstrap]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    faulty.faults.clear()
    assert (found.returncode, found.stderr) == (0, "")


def test_faults_are_off_without_their_setting() -> None:
    with forked_broker()({"kproc.faults.enable": False}) as plain:
        with pytest.raises(ClientError, match=r"fault injection is off: .*kproc\.faults\.enable=true"):
            plain.faults.close("Produce")
        assert not os.path.exists(plain.data / ".faults")


def test_status_and_log_of_kproc_serve_warn(tmp_path: Path) -> None:
    with ServedBroker(
        tmp_path / "data", settings={"kproc.faults.enable": True, "kproc.time.movable": True}
    ) as served:
        assert "fault injection is enabled" in served.log()
        assert "the broker's time can be moved" in served.log()
        faults = Faults(lambda: Client.connect(*address_of(served.bootstrap)))
        with Client.connect(*address_of(served.bootstrap)) as client:
            assert "fault injection is enabled" in client.operate("status")["problem"]
            faults.close("Produce", topic="other")
            assert "1 fault rule is active" in client.operate("status")["problem"]
        assert "fault rule 1 added" in served.log()
        faults.release()
        served.stop(signal.SIGKILL)
        # Rules end with the broker, also if it is killed.
        served.start()
        faults = Faults(lambda: Client.connect(*address_of(served.bootstrap)))
        assert faults.list() == []


def test_large_requests_of_many_rows_are_delayed_and_failed(faulty: Broker, connection: RawClient) -> None:
    """They are handled in steps, which otherwise hold their connection."""
    rows = [{"topic_id": NO_TOPIC_ID, "name": f"absent-{number}"} for number in range(1000)]
    fields = {"topics": rows, "allow_auto_topic_creation": False}

    def codes() -> dict[int, int]:
        topics = connection.call(ApiKey.METADATA, 12, fields)["topics"]
        return Counter(row["error_code"] for row in topics)

    with faulty.faults.delay("Metadata", ms=20, topic="absent-*") as delay:
        assert codes() == {UNKNOWN_TOPIC: 1000}
    with faulty.faults.delay_answer("Metadata", ms=20, topic="absent-*") as late:
        assert codes() == {UNKNOWN_TOPIC: 1000}
    with faulty.faults.fail("Metadata", topic="absent-1*", error="TOPIC_AUTHORIZATION_FAILED") as failed:
        assert codes() == {UNKNOWN_TOPIC: 889, TOPIC_AUTHORIZATION_FAILED: 111}
    assert (delay.hits, late.hits, failed.hits) == (1, 1, 1)


def test_malformed_request_is_rejected_while_rules_exist(faulty: Broker) -> None:
    with faulty.faults.fail("Metadata", error="UNKNOWN_SERVER_ERROR"), RawClient(faulty.bootstrap) as broken:
        broken.send_bytes(b"\0\0\0\x0e\0\x03\0\x01\0\0\0\1\xff\xff\x7f\xff\xff\xff")
        assert broken.is_closed_by_broker()
    with Client.connect(faulty.host, faulty.port) as client:
        rows = [row["counters"]["contained_failures"] for row in client.operate("status")["processes"]]
    assert sum(rows) == 0


@pytest.mark.long
def test_held_answers_and_rules_survive_scaling() -> None:
    """Connections migrate with their held answers, new Handlers read the rules, and leaving ones keep nobody."""
    with forked_broker()({"num.io.threads": 2, "num.network.threads": 2}) as faulty, ExitStack() as stack:
        faulty.create_topic("orders", partitions=4)
        clients = [stack.enter_context(RawClient(faulty.bootstrap)) for _ in range(4)]
        admin = stack.enter_context(Client.connect(faulty.host, faulty.port))
        with faulty.faults.delay_answer("Produce", ms=1000, topic="orders") as late:
            for each in clients:
                each.send(ApiKey.PRODUCE, 9, produce_fields([("orders", NO_TOPIC_ID, [(0, batch(b"x"))])]))
            late.wait_for_hits(4)
            admin.scale(processors=1)
            for each in clients:
                [answer] = each.receive(ApiKey.PRODUCE, 9)[1]["responses"]
                assert answer["partition_responses"][0]["error_code"] == 0
        rules = [faulty.faults.drop_request("ListOffsets", times=1) for _ in range(4)]
        for each in clients:
            each.send(ApiKey.LIST_OFFSETS, 9, list_offsets_fields("orders", [(0, -1)]))
        for rule in rules:
            rule.wait_for_hits()
        with faulty.faults.fail("Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER") as failed:
            admin.scale(handlers=1)
            admin.scale(handlers=3)
            for number in range(8):
                with RawClient(faulty.bootstrap) as each:
                    row = each.produce("orders", batch(b"x"), partition=number % 4)
                    assert row["error_code"] == NOT_LEADER
        assert failed.hits == 8
        assert len(faulty.faults.list()) == 4
